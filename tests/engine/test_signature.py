"""A bundle is read only as one of the trusted keys has signed it, if keys are trusted."""

import json
import os
import shutil
import sys
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("model_signing")
from model_signing import hashing, signing, verifying

from addnorm.export import writer
from addnorm.export.verifying import verify
from addnorm.service.command import sign
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine import signature
from addnorm.service.errors import BundleRefused, StartupError
from addnorm.service.loading.loader import load_all
from addnorm.service.loading.repository import Repository
from addnorm.service.settings import Settings
from tests.support.bundles import flip, hashed_anew
from tests.support.signing import Signer

REMEDY = "; or sign it with `addnorm sign {} --key KEY.pem` if it is yours"


@pytest.fixture
def copy(notebook: Path, tmp_path: Path) -> Path:
    shutil.copytree(notebook, tmp_path / "bundles" / "notebook" / "1")
    return tmp_path / "bundles" / "notebook" / "1"


def signed(path: Path, signer: Signer) -> None:
    signature.sign(path, signer.key, None, [])


def payload(path: Path) -> dict[str, Any]:
    envelope = json.loads((path / "model.sig").read_bytes())["dsseEnvelope"]
    return json.loads(b64decode(envelope["payload"]))  # type: ignore[no-any-return]


def test_every_file_but_the_signature_is_signed(
    copy: Path, alice: Signer, mallory: Signer, capsys: pytest.CaptureFixture[str]
) -> None:
    (copy / ".gitignore").write_text("leave out nothing")
    names = sorted(file.name for file in copy.iterdir())
    for _ in range(2):  # the second time over the signature of the first
        sign([str(copy), "--key", str(alice.key)])
        assert capsys.readouterr().out == f"signed {', '.join(names)}\nwrote {copy / 'model.sig'}\n"
    resources = payload(copy)["predicate"]["resources"]
    assert [resource["name"] for resource in resources] == names
    assert bundles.read(copy, [mallory.public, alice.public]).ref == "notebook/1"
    assert bundles.read(copy).ref == "notebook/1"  # who trusts nobody in particular


def elsewhere_signed(path: Path, signer: Signer, *excepted: str) -> None:
    """Signs a bundle as the library's own command does."""
    files = hashing.Config().set_ignored_paths(paths=["model.sig", *excepted])
    config = signing.Config().use_elliptic_key_signer(private_key=signer.key)
    config.set_hashing_config(files).sign(path, path / "model.sig")


def test_signatures_are_those_of_the_librarys_own_command(copy: Path, alice: Signer) -> None:
    signed(copy, alice)
    check = verifying.Config().use_elliptic_key_verifier(public_key=alice.public)
    check.verify(copy, copy / "model.sig")
    elsewhere_signed(copy, alice)
    assert bundles.read(copy, [alice.public]).ref == "notebook/1"


def test_the_signature_gets_into_no_manifest(copy: Path, alice: Signer) -> None:
    signed(copy, alice)
    bundle = bundles.read(copy)
    assert hashed_anew(bundle).manifest.files == bundle.manifest.files


def resigned(copy: Path, mallory: Signer) -> None:
    """A change that fits the hashes of manifest and certificate."""
    (copy / "notes.txt").write_text("changed")
    bundle = bundles.read(copy)
    again = hashed_anew(bundle)
    assert bundle.certificate
    known = {k: v for k, v in bundle.certificate.items() if k not in ("bundle", "manifest_sha256")}
    bundles.write_certificate(again, known)
    signed(copy, mallory)


UNSET, COPY, ADD = "unset ADDNORM_TRUSTED_KEYS", "copy it again", "add the signer's key"
OTHER_KEY = "model.sig was not made with a key in ADDNORM_TRUSTED_KEYS"


def rawly(bundle: Path) -> None:
    """Programs as other versions of the library sign them."""
    text = (bundle / "model.sig").read_text()
    (bundle / "model.sig").write_text(text.replace('"hint"', '"rawBytes"'))


CHANGES: list[tuple[Callable[[Path, Signer], object], str, str]] = [
    (lambda b, _: (b / "model.sig").unlink(), "it is not signed, model.sig is missing", UNSET),
    (signed, OTHER_KEY, ADD),
    (resigned, OTHER_KEY, ADD),
    (lambda b, _: flip(b / "model.onnx"), "model.onnx changed after it was signed", COPY),
    (lambda b, _: (b / "certificate.json").write_text("{}"),
     "certificate.json changed after it was signed", COPY),
    (lambda b, _: (b / "pooled.onnx").write_bytes(b""),
     "pooled.onnx is not among the files that were signed", COPY),
    (lambda b, _: [(b / ".git").mkdir(), (b / ".git" / "x").write_bytes(b"")],
     ".git/x is not among the files that were signed", COPY),
    (lambda b, _: (b / "logits.onnx").unlink(), "logits.onnx was signed and is missing", COPY),
    (lambda b, _: flip(b / "model.sig"), "model.sig ", ""),
    # it takes no place on the disk
    (lambda b, _: os.truncate(b / "model.sig", 2**40),
     "model.sig has 1099511627776 bytes, the limit is 1048576", UNSET),
    (lambda b, _: rawly(b), "model.sig is broken, or was not made with a key or a certificate",
     UNSET),
]  # fmt: skip


@pytest.mark.parametrize(("change", "what", "remedy"), CHANGES)
def test_what_is_not_as_a_trusted_key_signed_it_is_refused_in_one_line(
    copy: Path, alice: Signer, mallory: Signer, capsys: pytest.CaptureFixture[str],
    change: Callable[[Path, Signer], object], what: str, remedy: str,
) -> None:  # fmt: skip
    """At start, and on a hot load, where what runs goes on."""
    signed(copy, alice)
    settings = Settings(trusted_keys=str(alice.public), token_budget=128, worker_threads=1)
    models = load_all(copy.parent.parent, settings)
    repository, running = Repository(models, settings), models.find("notebook")
    change(copy, mallory)
    with pytest.raises(StartupError) as at_start:
        load_all(copy.parent.parent, settings)
    line = str(at_start.value)
    assert line.startswith(f"bundle {copy}: {what}")
    assert remedy in line
    assert line.endswith(REMEDY.format(copy))
    assert "\n" not in line
    with pytest.raises(BundleRefused) as on_load:
        repository.load("notebook")
    message = line.replace(f"{copy.parent.parent}/", "")  # callers learn of no folder
    assert str(on_load.value) == f"{message}; serving now: notebook/1"
    assert models.find("notebook") is running
    (entry,) = models.index()
    assert (entry.state, entry.reason) == ("READY", message)
    assert capsys.readouterr() == ("", "")


def test_a_signature_cannot_except_files(copy: Path, alice: Signer) -> None:
    """The format lets whoever signs leave files out. They would be served unsigned."""
    elsewhere_signed(copy, alice, "model.onnx")
    with pytest.raises(StartupError, match=r"model\.onnx is not among the files that were signed"):
        bundles.read(copy, [alice.public])


def test_a_bundle_that_is_switched_while_it_is_read_is_refused(
    copy: Path, alice: Signer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link may be switched, after the signature of one was checked and before the other is
    read."""
    signed(copy, alice)
    place = tmp_path / "link"
    place.symlink_to(copy)
    assert bundles.read(place, [alice.public]).ref == "notebook/1"
    shutil.copytree(copy, other := tmp_path / "other")
    resigned(other, alice)
    check = signature.check

    def switched(path: Path, trusted: list[Path]) -> dict[str, str]:
        bundle = check(path, trusted)
        place.unlink()
        place.symlink_to(other)
        return bundle

    monkeypatch.setattr(signature, "check", switched)
    with pytest.raises(StartupError, match="changed while it was being read"):
        bundles.read(place, [alice.public])


def test_links_are_neither_signed_nor_read(copy: Path, alice: Signer, tmp_path: Path) -> None:
    signed(copy, alice)
    (copy / "model.onnx").rename(tmp_path / "elsewhere")
    (copy / "model.onnx").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StartupError, match=r"model\.onnx is a link"):
        bundles.read(copy, [alice.public])
    with pytest.raises(StartupError, match=r"model\.onnx is a link"):
        signed(copy, alice)


def test_a_chain_of_certificates_is_trusted_by_its_root(
    copy: Path, alice: Signer, mallory: Signer, tmp_path: Path
) -> None:
    root = Signer(tmp_path, "root")
    between = Signer(tmp_path, "between", root)
    leaf = Signer(tmp_path, "leaf", between)
    keys = ["--key", leaf.key, "--certificate", leaf.certificate, "--chain", between.certificate]
    sign([str(word) for word in (copy, *keys)])
    trusted = [alice.public, mallory.certificate, root.certificate]
    assert bundles.read(copy, trusted).ref == "notebook/1"
    with pytest.raises(
        StartupError,
        match=r"model\.sig was not made with a certificate .* \(.*certificate.*\); add the signer",
    ):
        bundles.read(copy, [mallory.certificate])
    # not even one that browsers trust will do where there are only keys
    with pytest.raises(StartupError, match=r"model\.sig was not made with a certificate "):
        bundles.read(copy, [leaf.public])
    signature.sign(copy, between.key, between.certificate, [])  # by the root itself
    assert bundles.read(copy, trusted).ref == "notebook/1"
    flip(copy / "logits.onnx")
    with pytest.raises(StartupError, match=r"logits\.onnx changed after it was signed"):
        bundles.read(copy, trusted)


@pytest.mark.parametrize("content", [b"", b"-----BEGIN PUBLIC KEY-----", "private", "two"])
def test_a_trusted_key_that_cannot_be_read_is_named(
    copy: Path, alice: Signer, tmp_path: Path, content: bytes | str
) -> None:
    signed(copy, alice)
    key_bytes = {"private": alice.key.read_bytes(), "two": alice.public.read_bytes() * 2}
    (file := tmp_path / "x.pem").write_bytes(key_bytes.get(content, content))
    with pytest.raises(
        StartupError, match=r"^ADDNORM_TRUSTED_KEYS: .*x\.pem must hold one public EC key"
    ):
        bundles.read(copy, [alice.public, file])
    file.unlink()
    with pytest.raises(StartupError, match=r"^ADDNORM_TRUSTED_KEYS: .*x\.pem: No such file"):
        bundles.read(copy, [alice.public, file])


def test_a_key_that_cannot_sign_is_named(copy: Path, alice: Signer, mallory: Signer) -> None:
    for key, certificate, words in (
        (alice.public, None, "must be a private EC key of P-256, P-384 or P-521"),
        (alice.key, mallory.certificate, "does not match"),
        (copy / "none.pem", None, "none.pem: No such file"),
    ):
        with pytest.raises(StartupError, match=words):
            signature.sign(copy, key, certificate, [])
    (copy / "certificate.json").unlink()
    with pytest.raises(SystemExit, match=r"^addnorm: .*certify it"):
        sign([str(copy), "--key", str(alice.key)])
    assert not (copy / "model.sig").exists()


def test_without_the_extra_the_start_says_what_to_install(
    copy: Path, alice: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed(copy, alice)
    monkeypatch.setitem(sys.modules, "model_signing", None)
    with pytest.raises(
        StartupError,
        match=r"^ADDNORM_TRUSTED_KEYS is set, but the package model_signing is not installed; run"
        r" `pip install '\.\[signing\]'` in a clone",
    ):
        bundles.read(copy, [alice.public])
    with pytest.raises(ModuleNotFoundError):  # `addnorm` names the extra
        signed(copy, alice)
    assert bundles.read(copy).ref == "notebook/1"


def test_a_new_certificate_ends_the_signature_and_verify_says_so(
    copy: Path, alice: Signer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    certify = writer.certify
    monkeypatch.setattr(writer, "certify", lambda *given: certify(*given, again=True))
    verify(copy)
    assert "model.sig" not in capsys.readouterr().out
    signed(copy, alice)
    verify(copy)
    again = f"sign again with `addnorm sign {copy} --key KEY.pem`"
    assert capsys.readouterr().out.endswith(f"model.sig signs the previous certificate: {again}\n")
