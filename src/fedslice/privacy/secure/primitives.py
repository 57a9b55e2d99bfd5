"""The cryptography that secure sums stand on, all of it from the package ``cryptography``.

X25519 (RFC 7748) for keys of pairs, Ed25519 (RFC 8032) for signatures, HKDF-SHA256 (RFC 5869) to
derive one key for one use, AES-256-GCM (NIST SP 800-38D) for shares, AES-256 in counter mode (NIST
SP 800-38A) for masks.  Here is nothing but their use: which bytes go in, which come out.
"""

from fedslice.errors import InputError

try:
    from cryptography.exceptions import InvalidSignature, InvalidTag
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )
    from cryptography.hazmat.primitives.asymmetric.x25519 import (
        X25519PrivateKey as X25519PrivateKey,
    )
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError as error:  # pragma: no cover
    raise InputError(
        "secure sums need the package cryptography: pip install 'fedslice[privacy]'"
    ) from error

KEY, SIGNATURE, GCM_TAG = 32, 64, 16
"""Bytes of a key (private, public or symmetric), of a signature, and what GCM adds to a text."""
_NONCE = bytes(12)


def private_key(secret: bytes) -> X25519PrivateKey:
    """The X25519 private key that 32 random bytes are.

    >>> private_key(bytes(range(32))).private_bytes_raw() == bytes(range(32))
    True
    """
    return X25519PrivateKey.from_private_bytes(secret)


def public_of(private: X25519PrivateKey) -> bytes:
    """The public key of a private one.

    >>> len(public_of(private_key(bytes(range(32)))))
    32
    """
    return private.public_key().public_bytes_raw()


def agree(private: X25519PrivateKey, public: bytes) -> bytes:
    """The secret that two key pairs have in common: the same from both sides.

    A public key of small order would make it zero whatever the private key is: refused.

    >>> ours, theirs = private_key(bytes(range(32))), private_key(bytes(range(1, 33)))
    >>> agree(ours, public_of(theirs)) == agree(theirs, public_of(ours))
    True
    """
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise InputError(
            "a public key of small order gives no secret: make a new one from 32 random bytes"
        ) from error


def identity_of(private: bytes) -> bytes:
    """The Ed25519 public key, what a roster holds, of an identity's private key.

    >>> identity_of(bytes(32)).hex()[:16]
    '3b6a27bcceb6a42d'
    """
    return Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def sign(private: bytes, message: bytes) -> bytes:
    """An Ed25519 signature, 64 bytes.

    >>> verified(identity_of(bytes(32)), sign(bytes(32), b"yes"), b"yes")
    True
    """
    return Ed25519PrivateKey.from_private_bytes(private).sign(message)


def verified(public: bytes, signature: bytes, message: bytes) -> bool:
    """Whether a signature of this message was made with the private key of ``public``.

    >>> verified(identity_of(bytes(32)), sign(bytes(32), b"yes"), b"no")
    False
    """
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def derive(secret: bytes, info: bytes, salt: bytes = b"", size: int = KEY) -> bytes:
    """HKDF-SHA256: a key for the use that ``info`` names, from a secret.

    >>> derive(b"secret", b"masks") == derive(b"secret", b"shares")
    False
    """
    return HKDF(SHA256(), size, salt, info).derive(secret)


def seal(key: bytes, text: bytes, bound: bytes) -> bytes:
    """AES-256-GCM of a text, together with ``bound``, which is not sent but must be the same.

    The nonce is zero: a key seals one text, ever (it is derived for one session, sender and
    receiver).

    >>> unseal(bytes(32), seal(bytes(32), b"share", b"to 7"), b"to 7")
    b'share'
    """
    return AESGCM(key).encrypt(_NONCE, text, bound)


def unseal(key: bytes, sealed: bytes, bound: bytes) -> bytes | None:
    """The text, or None if it or what it is bound to was changed.

    >>> unseal(bytes(32), seal(bytes(32), b"share", b"to 7"), b"to 8") is None
    True
    """
    try:
        return AESGCM(key).decrypt(_NONCE, sealed, bound)
    except InvalidTag:
        return None


def key_stream(key: bytes, counters: bytes) -> bytes:
    """The AES-256-CTR key stream at any places: the cipher of these counter blocks, 16 bytes each.

    Counter mode *is* the cipher of counters (SP 800-38A, 6.5), added to the text.  With the
    counters written out scattered blocks cost one call; no text is ever enciphered so.

    >>> key_stream(bytes(32), bytes(16)).hex()[:16]
    'dc95c078a2408989'
    """
    return Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(counters)
