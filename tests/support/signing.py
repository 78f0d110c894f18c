"""Keys and certificates for signing bundles, made up for one test."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)


class Signer:
    """A private key, its public key, and a certificate by `issuer`, or by itself, as files."""

    def __init__(self, folder: Path, name: str, issuer: "Signer | None" = None) -> None:
        self._private, self._name = ec.generate_private_key(ec.SECP256R1()), name
        self.key, self.public, self.certificate = (
            folder / f"{name}.{kind}.pem" for kind in ("key", "public", "certificate")
        )
        self.key.write_bytes(
            self._private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        )
        self.public.write_bytes(
            self._private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        )
        self.certificate.write_bytes(self._certified_by(issuer or self))

    def _certified_by(self, issuer: "Signer") -> bytes:
        now = datetime.now(UTC)
        usage = dict.fromkeys(
            (
                "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
                "crl_sign", "encipher_only", "decipher_only",
            ),
            False,
        )  # fmt: skip
        builder = (
            x509.CertificateBuilder()
            .subject_name(_named(self._name))
            .issuer_name(_named(issuer._name))
            .public_key(self._private.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(
                x509.KeyUsage(digital_signature=True, key_cert_sign=True, **usage), critical=True
            )
        )
        return builder.sign(issuer._private, SHA256()).public_bytes(Encoding.PEM)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
