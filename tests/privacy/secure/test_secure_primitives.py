"""Published vectors of the primitives, through the functions that secure sums call."""

import importlib.util
import subprocess
import sys

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedslice.errors import InputError
from fedslice.privacy.secure import primitives

HEX = bytes.fromhex


def test_without_the_package_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    spec = importlib.util.spec_from_file_location("lacking", primitives.__file__)
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(InputError, match=r"pip install 'fedslice\[privacy\]'"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_degrees_and_fixed_point_need_no_cryptography() -> None:
    # A simulation uses both, and secures nothing.
    code = (
        "import sys; sys.modules['cryptography'] = None;"
        "import fedslice.privacy.secure.degree, fedslice.stage.fixed"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_x25519_of_rfc_7748_section_6_1() -> None:
    alice = HEX("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
    bob = HEX("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    keys = [primitives.private_key(each) for each in (alice, bob)]
    publics = [primitives.public_of(key) for key in keys]
    assert publics[0].hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    assert publics[1].hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    shared = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    assert primitives.agree(keys[0], publics[1]).hex() == shared
    assert primitives.agree(keys[1], publics[0]).hex() == shared


def test_keys_of_small_order_are_refused() -> None:
    key = primitives.private_key(bytes(range(32)))
    for public in (bytes(32), (1).to_bytes(32, "little")):
        with pytest.raises(InputError, match="small order"):
            primitives.agree(key, public)


@pytest.mark.parametrize(
    ("private", "public", "message", "signature"),
    [
        (
            "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
            "",
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
            "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
        ),
        (
            "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
            "72",
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
            "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
        ),
    ],
)
def test_ed25519_of_rfc_8032_section_7_1(
    private: str, public: str, message: str, signature: str
) -> None:
    assert primitives.identity_of(HEX(private)).hex() == public
    assert primitives.sign(HEX(private), HEX(message)).hex() == signature
    assert primitives.verified(HEX(public), HEX(signature), HEX(message))
    assert not primitives.verified(HEX(public), HEX(signature), HEX(message) + b"x")
    assert not primitives.verified(HEX(public), HEX(signature)[::-1], HEX(message))
    assert not primitives.verified(HEX(public), HEX(signature)[:63], HEX(message))


@pytest.mark.parametrize(
    ("secret", "salt", "info", "found"),
    [
        (
            bytes([0x0B] * 22),
            bytes(range(13)),
            bytes(range(0xF0, 0xFA)),
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
        ),
        (
            bytes(range(0x50)),
            bytes(range(0x60, 0xB0)),
            bytes(range(0xB0, 0x100)),
            "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c"
            "59045a99cac7827271cb41c65e590e09da3275600c2f09b8367793a9aca3db71"
            "cc30c58179ec3e87c14c01d5c1f3434f1d87",
        ),
        (
            bytes([0x0B] * 22),
            b"",
            b"",
            "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8",
        ),
    ],
)
def test_hkdf_of_rfc_5869_appendix_a(secret: bytes, salt: bytes, info: bytes, found: str) -> None:
    assert primitives.derive(secret, info, salt, len(found) // 2).hex() == found


NIST_KEY = HEX("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")


def test_key_stream_of_sp_800_38a_f_5_5() -> None:
    first = int.from_bytes(HEX("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff"))
    counters = b"".join((first + block).to_bytes(16) for block in range(4))
    plain = HEX(
        "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
        "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
    )
    stream = primitives.key_stream(NIST_KEY, counters)
    assert bytes(a ^ b for a, b in zip(stream, plain, strict=True)).hex() == (
        "601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5"
        "2b0930daa23de94ce87017ba2d84988ddfc9c58db67aada613c2dd08457941a6"
    )


def test_key_stream_at_any_place_is_that_of_counter_mode() -> None:
    whole = Cipher(algorithms.AES(NIST_KEY), modes.CTR(bytes(16))).encryptor().update(bytes(16_000))
    places = [0, 3, 4, 255, 256, 999]
    counters = b"".join(place.to_bytes(16) for place in places)
    expected = b"".join(whole[16 * place : 16 * place + 16] for place in places)
    assert primitives.key_stream(NIST_KEY, counters) == expected


def test_gcm_of_the_specification_cases_13_and_14() -> None:
    assert primitives.seal(bytes(32), b"", b"").hex() == "530f8afbc74536b9a963b4f1c4cb738b"
    sealed = "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919"
    assert primitives.seal(bytes(32), bytes(16), b"").hex() == sealed
    assert primitives.unseal(bytes(32), HEX(sealed), b"") == bytes(16)


def _ghash(key: int, blocks: bytes) -> int:
    """SP 800-38D, algorithms 1 and 2, bit by bit."""
    found = 0
    for start in range(0, len(blocks), 16):
        left, right, found = found ^ int.from_bytes(blocks[start : start + 16]), key, 0
        for bit in range(127, -1, -1):
            if left >> bit & 1:
                found ^= right
            right = right >> 1 ^ (0xE1 << 120 if right & 1 else 0)
    return found


def test_what_a_share_is_bound_to_is_authenticated_as_gcm_says() -> None:
    text, bound = bytes(range(66)), b"from 3 to 7, turn 1"
    counters = b"".join(bytes(12) + block.to_bytes(4) for block in range(1, 7))
    stream = primitives.key_stream(NIST_KEY, counters)
    coded = bytes(a ^ b for a, b in zip(text, stream[16:], strict=False))
    padded = bound + bytes(-len(bound) % 16) + coded + bytes(-len(coded) % 16)
    sizes = (8 * len(bound)).to_bytes(8) + (8 * len(coded)).to_bytes(8)
    key = int.from_bytes(primitives.key_stream(NIST_KEY, bytes(16)))
    tag = _ghash(key, padded + sizes) ^ int.from_bytes(stream[:16])
    sealed = primitives.seal(NIST_KEY, text, bound)
    assert sealed == coded + tag.to_bytes(16)
    assert primitives.unseal(NIST_KEY, sealed, bound) == text
    assert primitives.unseal(NIST_KEY, sealed, b"from 3 to 8, turn 1") is None
    assert primitives.unseal(NIST_KEY, sealed[:-1] + b"!", bound) is None
