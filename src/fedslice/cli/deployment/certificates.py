"""Keys of a trial on one machine: an authority, a certificate for the loopback, a key for each
node.  For real machines use an authority of your own, and keys that never leave their node.
"""

import datetime
import ipaddress
from pathlib import Path
from typing import Any

from fedslice.files.writing import atomic_write

DAYS = 30


class Certificates:
    """Keys in ``folder``, made anew where they are not there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority, self.server = folder / "ca.crt", folder / "server.crt"
        folder.mkdir(parents=True, exist_ok=True)
        if not self.server.exists():
            self._issue()

    def of_server(self) -> list[str]:
        """As ``flower-superlink`` wants them."""
        return [
            *("--ssl-ca-certfile", str(self.authority)),
            *("--ssl-certfile", str(self.server)),
            *("--ssl-keyfile", str(self.folder / "server.key")),
        ]

    def of_node(self, name: str) -> tuple[Path, Path]:
        """The private key of a node, and the public one that is to be registered; as ``ssh-keygen
        -t ecdsa -b 384`` makes them."""
        from cryptography.hazmat.primitives import serialization as form
        from cryptography.hazmat.primitives.asymmetric import ec

        private, public = self.folder / f"{name}.key", self.folder / f"{name}.pub"
        if not private.exists():
            key = ec.generate_private_key(ec.SECP384R1())
            ssh = form.Encoding.OpenSSH, form.PublicFormat.OpenSSH
            atomic_write(public, key.public_key().public_bytes(*ssh))
            _write_key(private, key, form.PrivateFormat.OpenSSH)
        return private, public

    def _issue(self) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives import serialization as form
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID

        now = datetime.datetime.now(datetime.UTC)
        keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
        names = [
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)])
            for each in ("fedslice trial", "localhost")
        ]
        places = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        for file, key, name, root in zip(
            (self.authority, self.server), keys, names, (True, False), strict=True
        ):
            draft = (
                x509.CertificateBuilder()
                .subject_name(name)
                .issuer_name(names[0])
                .public_key(key.public_key())
                .serial_number(x509.random_serial_number())
                .not_valid_before(now - datetime.timedelta(hours=1))
                .not_valid_after(now + datetime.timedelta(days=DAYS))
                .add_extension(x509.BasicConstraints(ca=root, path_length=None), critical=True)
            )
            if not root:
                draft = draft.add_extension(x509.SubjectAlternativeName(places), critical=False)
            made = draft.sign(keys[0], hashes.SHA256())
            if not root:
                _write_key(self.folder / "server.key", key, form.PrivateFormat.PKCS8)
            atomic_write(file, made.public_bytes(form.Encoding.PEM))


def _write_key(file: Path, key: Any, kind: Any) -> None:
    """For its owner alone."""
    from cryptography.hazmat.primitives import serialization as form

    text = key.private_bytes(form.Encoding.PEM, kind, form.NoEncryption())
    atomic_write(file, text, private=True)
