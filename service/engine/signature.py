"""Signatures of bundles in the OpenSSF Model Signing format, made and checked without a network.

A signature covers every file of a bundle's folder but itself. The library is imported only where it
is used: a server without trusted keys does without it.
"""

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from addnorm.service import to_install
from addnorm.service.engine.files import TooLarge, read
from addnorm.service.errors import StartupError

if TYPE_CHECKING:
    from model_signing.verifying import Config as Verifier

SIGNATURE = "model.sig"
MOST_BYTES = 2**20  # of a signature; those of a bundle have some thousands
KEYS = "ADDNORM_TRUSTED_KEYS"
CURVES = "P-256, P-384 or P-521"


def sign(path: Path, key: Path, certificate: Path | None, chain: Sequence[Path]) -> list[str]:
    """Signs all files of a folder, and returns their names.

    key: private, PEM. certificate: of this key, if servers trust its issuer. chain: certificates
    between the two. StartupError if they do not fit.
    """
    from model_signing import signing

    folder, files, config = path.resolve(), _every_file(), signing.Config()
    _refuse_links(path)
    try:
        if certificate:
            config.use_certificate_signer(
                private_key=key,
                signing_certificate=certificate,
                certificate_chain=chain or [certificate],  # the library cannot take none
            )
        else:
            config.use_elliptic_key_signer(private_key=key)
    except OSError as error:
        raise StartupError(f"{error.filename}: {error.strerror}") from None
    except Exception as error:  # cryptography raises many kinds for keys that do not fit
        problem = f"{key} must be a private EC key of {CURVES} in PEM without a passphrase"
        suffix = ", and each certificate PEM, the first of this key" if certificate else ""
        raise StartupError(f"{problem}{suffix}: {_first_line(error)}") from None
    partial = folder / f".{SIGNATURE}"
    partial.unlink(missing_ok=True)  # it would be signed
    config.set_hashing_config(files).sign(folder, partial)
    partial.rename(folder / SIGNATURE)
    return sorted(files.digests)


def check(path: Path, trusted_keys: Sequence[Path]) -> dict[str, str]:
    """The sha256 of every file of a folder that one of these keys or certificates has signed.

    trusted_keys: files in PEM. StartupError if nobody signed the folder, or somebody else, or if a
    file is not as it was signed.
    """
    verifiers = _verifiers(trusted_keys)
    folder = path.resolve()  # the library takes no link, and this one may lead elsewhere soon
    signature = folder / SIGNATURE
    if not signature.is_file():
        raise _refuse(
            path, f"it is not signed, {SIGNATURE} is missing", f"get a signed one, or unset {KEYS}"
        )
    kind, signed_digests = _read(path, signature)
    _refuse_links(path)
    reason = ""
    for verifier in verifiers[kind]:
        files = _every_file()
        try:
            verifier.set_hashing_config(files).verify(folder, signature)
            digests: dict[str, str] = files.digests
            return digests
        except OSError:
            raise
        except Exception as error:  # the library and what it stands on raise many kinds
            if files.digests:  # they are read only after the signature proved to be trusted
                problem = _first_line(error)
                for name in sorted(signed_digests.keys() | files.digests.keys(), reverse=True):
                    if name not in signed_digests:
                        problem = f"{name} is not among the files that were signed"
                    elif name not in files.digests:
                        problem = f"{name} was signed and is missing"
                    elif signed_digests[name] != files.digests[name]:
                        problem = f"{name} changed after it was signed"
                raise _refuse(path, problem, "copy it again from the signed original") from None
            reason = f" ({_first_line(error)})" if kind == "certificate" else ""
    problem = f"{SIGNATURE} was not made with a {kind} in {KEYS}{reason}"
    raise _refuse(path, problem, f"add the signer's {kind} there if you trust it")


def _verifiers(trusted_keys: Sequence[Path]) -> dict[str, list["Verifier"]]:
    """Kind of signature -> its verifiers. One verifier has all certificates, for chains of them."""
    try:
        from model_signing import verifying
    except ModuleNotFoundError as error:
        message = f"{KEYS} is set, but the package {error.name} is not installed"
        raise StartupError(f"{message}; {to_install('signing')}") from None
    keys, certificates = [], []
    for file in trusted_keys:
        try:
            content = file.read_bytes()
            if b"-----BEGIN CERTIFICATE" in content:
                verifying.Config().use_certificate_verifier(certificate_chain=[file])
                certificates.append(file)
            elif content.count(b"-----BEGIN") > 1:
                raise ValueError  # only the first would be read
            else:
                keys.append(verifying.Config().use_elliptic_key_verifier(public_key=file))
        except OSError as error:
            raise StartupError(f"{KEYS}: {file}: {error.strerror}; correct or unset it") from None
        except Exception:  # cryptography raises many kinds for what is no key
            message = f"{file} must hold one public EC key of {CURVES}, or certificates, in PEM"
            raise StartupError(f"{KEYS}: {message}") from None
    verifiers: dict[str, list[Verifier]] = {"key": keys, "certificate": []}
    if certificates:  # without any, the library would trust all that browsers trust
        config = verifying.Config().use_certificate_verifier(certificate_chain=certificates)
        verifiers["certificate"].append(config)
    return verifiers


def _read(path: Path, signature: Path) -> tuple[str, dict[str, str]]:
    """A signature's statement, not yet checked: `key` or `certificate`, by which it was made, and
    the digest of each file."""
    try:
        content = json.loads(read(signature, MOST_BYTES))
        material = content["verificationMaterial"]
        statement = json.loads(base64.b64decode(content["dsseEnvelope"]["payload"]))
        resources: list[dict[str, Any]] = statement["predicate"]["resources"]
        digests = {resource["name"]: resource["digest"] for resource in resources}
        is_by_key = "x509CertificateChain" not in material
        if is_by_key and not material["publicKey"]["hint"]:
            raise ValueError  # made before 1.0; the library would print a warning
    except OSError:
        raise
    except TooLarge as error:
        raise _refuse(path, str(error), f"get a signed one, or unset {KEYS}") from None
    except Exception:  # whatever lies there
        problem = f"{SIGNATURE} is broken, or was not made with a key or a certificate"
        raise _refuse(path, problem, f"get a signed one, or unset {KEYS}") from None
    return "key" if is_by_key else "certificate", digests


def _every_file() -> Any:
    """A configuration that hashes the files of a folder for the library, and keeps their digests in
    `digests`."""
    from model_signing import hashing

    class EveryFile(hashing.Config):
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.digests: dict[str, str] = {}
            self.set_ignored_paths(paths=[SIGNATURE], ignore_git_paths=False)

        def add_ignored_paths(self, **_: Any) -> None:
            """A signature cannot except files: those would be loaded unsigned."""

        def hash(self, *arguments: Any, **options: Any) -> Any:
            manifest = super().hash(*arguments, **options)
            for file in manifest.resource_descriptors():
                self.digests[file.identifier] = file.digest.digest_hex
            return manifest

    return EveryFile()


def _refuse_links(path: Path) -> None:
    """The target of a link may change without a trace in the folder."""
    links = [file.name for file in sorted(path.resolve().rglob("*")) if file.is_symlink()]
    if links:
        problem = f"{links[0]} is a link, which a signed bundle must not have"
        raise StartupError(f"bundle {path}: {problem}; put a copy of the file there")


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _refuse(path: Path, problem: str, remedy: str) -> StartupError:
    alternative = f"or sign it with `addnorm sign {path} --key KEY.pem` if it is yours"
    return StartupError(f"bundle {path}: {problem}; {remedy}; {alternative}")
