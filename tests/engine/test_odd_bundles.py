"""Whatever stands in a manifest or a certificate, it is refused in one line or served rightly."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from addnorm.service.engine import bundle as bundles
from addnorm.service.engine import selfcheck
from addnorm.service.engine.model import Model
from addnorm.service.errors import StartupError
from addnorm.service.loading.loader import load
from addnorm.service.settings import Settings

# what the server only shows
SHOWN = ("source", "versions", "opset")
READ = ("n_layers", "n_heads", "causal", "d_model", "max_positions", "vocab_size")  # of the config
DEEP = "[" * 100_000
ODD: list[Any] = [None, [], {}, {"a": None}, "odd\nodd", "../x", -1, 0, 1, 10**25]


def paths(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """To every value in a document; of lists only to the first one."""
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from paths(value[key], (*path, key))
    elif isinstance(value, list) and value:
        yield from paths(value[0], (*path, 0))


def changed(document: Any, path: tuple[str | int, ...], value: Any) -> Any:
    if not path:
        return value
    copy = json.loads(json.dumps(document))
    place = copy
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return copy


class Folder:
    """A bundle whose manifest and certificate are written anew, sealed as if they were right."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest, self.certificate = (
            json.loads((path / name).read_text()) for name in ("manifest.json", "certificate.json")
        )

    def write(self, manifest: Any, certificate: Any) -> None:
        written = json.dumps(manifest).encode()
        sealed = self.certificate["manifest_sha256"]
        if isinstance(certificate, dict) and certificate.get("manifest_sha256") == sealed:
            certificate = {**certificate, "manifest_sha256": hashlib.sha256(written).hexdigest()}
        (self.path / "manifest.json").write_bytes(written)
        (self.path / "certificate.json").write_text(json.dumps(certificate))

    def odd_ones(self) -> Iterator[str]:
        """Writes one after another, and says what is odd."""
        for path in paths(self.manifest):
            is_shown = path[:1] == ("config",) and path[1:] and path[1] not in READ
            if not is_shown and path[:1] not in [(name,) for name in SHOWN]:
                for odd in ODD:
                    self.write(changed(self.manifest, path, odd), self.certificate)
                    yield f"manifest {path} {odd!r:.50}"
        for path in paths(self.certificate):
            if path[:1] in ((), ("manifest_sha256",), ("passed",), ("known_answer",)):
                for odd in ODD:
                    self.write(self.manifest, changed(self.certificate, path, odd))
                    yield f"certificate {path} {odd!r:.50}"


@pytest.fixture
def folder(notebook: Path, tmp_path: Path) -> Folder:
    """A copy of the smallest bundle."""
    shutil.copytree(notebook, tmp_path / "notebook" / "1")
    return Folder(tmp_path / "notebook" / "1")


def works(model: Model) -> bool:
    """Whether all of it runs, and gives what the manifest says."""
    bundle, limits = model.bundle, model.bundle.manifest.limits
    engine = model.engine(None)
    rows = engine.run(selfcheck.sequences(limits, [limits.max_positions])).activations
    sizes = {name: engine.head(name, rows).shape[1] for name in bundle.manifest.heads}
    return np.isfinite(rows).all() and sizes == {name: bundle.width(name) for name in sizes}


def test_each_odd_value_is_refused_in_one_line_or_served_rightly(folder: Folder) -> None:
    messages, num_served = list[str](), 0
    for case in folder.odd_ones():
        try:
            model = load(bundles.read(folder.path), Settings(worker_threads=1))
        except StartupError as error:
            messages.append(str(error))
        else:
            assert works(model), case
            num_served += 1
    assert len(messages) > 5 * num_served > 0
    assert [line for line in messages if "\n" in line or len(line) > 1000] == []


@pytest.mark.parametrize("name", ["manifest.json", "certificate.json"])
@pytest.mark.parametrize("text", ["", DEEP, '{"config": ' + DEEP, "1" * 10_000, "\udc80"])
def test_text_that_is_no_such_json_is_refused_in_one_line(
    folder: Folder, name: str, text: str
) -> None:
    (folder.path / name).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(StartupError, match=f"{name} is .*broken") as refused:
        bundles.read(folder.path)
    assert "\n" not in str(refused.value)


TOO_LARGE = {  # file -> what is said of it
    "manifest.json": "bytes, the limit is 16777216",
    "certificate.json": "bytes, the limit is 16777216",
    "tokenizer.json": "bytes, the limit is 134217728",
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_a_file_that_is_too_large_is_not_read(folder: Folder, name: str) -> None:
    with (folder.path / name).open("ab") as file:
        file.truncate(300 * 2**20)  # takes no place on the disk
    if name == "tokenizer.json":
        size = {"sha256": "", "num_bytes": 300 * 2**20}
        files = {**folder.manifest["files"], name: size}
        folder.write({**folder.manifest, "files": files}, folder.certificate)
    with pytest.raises(StartupError, match=TOO_LARGE[name]):
        bundles.read(folder.path)


def listed_not(folder: Folder, name: str) -> None:
    """Takes a file out of the manifest, and seals the bundle."""
    files = {file: record for file, record in folder.manifest["files"].items() if file != name}
    folder.write({**folder.manifest, "files": files}, folder.certificate)


@pytest.mark.parametrize("name", ["model.onnx", "logits.onnx"])
def test_what_is_loaded_must_be_in_the_manifest(folder: Folder, name: str) -> None:
    listed_not(folder, name)
    with pytest.raises(StartupError, match=r"has no sha256 of .*, which is loaded"):
        bundles.read(folder.path)


def test_a_head_from_elsewhere_is_not_loaded(folder: Folder) -> None:
    head = folder.path / "logits.onnx"
    shutil.copy(head, folder.path.parent / "evil.onnx")
    heads = {"../evil": folder.manifest["heads"]["logits"]}
    folder.write({**folder.manifest, "heads": heads}, folder.certificate)
    with pytest.raises(StartupError, match=r"heads\.\.\./evil"):
        bundles.read(folder.path)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"d_model": 8}, "activations of shape .*16.* manifest has 8 numbers"),
        ({"n_norms": 3}, "norm_mean of shape .* 1.* manifest has 3 numbers"),
        ({"heads": {"logits": {"pick": "every", "width": 7}}}, "logits of shape .*6"),
        ({"limits": {"type_vocab_size": 2}}, "the manifest has .*token_type_ids"),
        ({"limits": {"max_positions": 6, "max_text_tokens": 6}}, "cannot run here"),
        ({"limits": {"vocab_size": 7}}, "cannot run here"),
    ],
)  # fmt: skip
def test_a_graph_that_is_not_as_the_manifest_says_is_refused(
    folder: Folder, changed: dict[str, Any], words: str
) -> None:
    manifest = json.loads(json.dumps(folder.manifest))
    if "limits" in changed:
        changed = {"limits": {**manifest["limits"], **changed["limits"]}}
    named = changed.get("limits", changed)
    manifest["config"] |= {name: named[name] for name in named if name in manifest["config"]}
    folder.certificate["known_answer"]["fp32"]["activations"] = [0.0] * named.get("d_model", 16)
    folder.write({**manifest, **changed}, folder.certificate)
    with pytest.raises(StartupError, match=words):
        load(bundles.read(folder.path), Settings(worker_threads=1))


def test_positions_that_the_graph_lacks_are_found(small: Path, tmp_path: Path) -> None:
    shutil.copytree(small / "gpt" / "1", tmp_path / "gpt" / "1")
    folder = Folder(tmp_path / "gpt" / "1")
    manifest = folder.manifest
    more = {"max_positions": 600, "max_text_tokens": 600}
    limits, config = manifest["limits"] | more, manifest["config"] | {"max_positions": 600}
    folder.write({**manifest, "limits": limits, "config": config}, folder.certificate)
    with pytest.raises(StartupError, match="gpt/1 cannot run here"):
        load(bundles.read(folder.path), Settings(worker_threads=1))
