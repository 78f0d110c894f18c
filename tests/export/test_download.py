"""Models of the Hugging Face hub, from one that runs here."""

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from huggingface_hub import constants

from addnorm.export import command
from addnorm.export.download import DownloadError, address, fetch, files_to_read
from addnorm.export.opening import Checkpoint, checkpoint_of
from addnorm.export.wishes import NO_WISHES
from addnorm.model.checkpoints import CheckpointError
from addnorm.service.engine.files import sha256
from tests.support.hub import COMMIT, REPOSITORY, Hub, hub
from tests.support.texts import checkpoint

UNREAD = (
    "pytorch_model.bin", "model.fp16.safetensors", "tf_model.h5", "flax_model.msgpack", "README.md",
    "onnx/model.onnx", "onnx/config.json", "openvino/openvino_model.bin", "custom.py",
    ".gitattributes",
)  # fmt: skip
READ = [
    "1_Pooling/config.json", "chat_template.jinja", "config.json", "model.safetensors",
    "modules.json", "sentence_bert_config.json", "tokenizer.json",
]  # fmt: skip


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = checkpoint(tmp_path_factory.mktemp("repository"))
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    for name in UNREAD:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("not to be read")
    return folder


@pytest.fixture
def served(repository: Path) -> Iterator[Hub]:
    with hub(repository) as served:
        yield served


def test_settings_are_looked_at_before_weights_are_downloaded(served: Hub, tmp_path: Path) -> None:
    def look(folder: Path, listed: Sequence[str]) -> None:
        assert {"tf_model.h5", "model.safetensors"} <= {*listed}
        assert json.loads((folder / "config.json").read_text())["model_type"] == "bert"
        raise CheckpointError("not such a model")

    with pytest.raises(CheckpointError, match="not such a model"):
        fetch(REPOSITORY, "main", served.url, tmp_path, look=look)
    assert sorted(served.sent) == [name for name in READ if name != "model.safetensors"]


def test_folders_of_modules_are_those_of_modules_json(repository: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(repository, tmp_path / "other")
    (folder / "pooled").mkdir()
    (folder / "1_Pooling" / "config.json").rename(folder / "pooled" / "config.json")
    listed = (folder / "modules.json").read_text().replace("1_Pooling", "pooled")
    (folder / "modules.json").write_text(listed)
    with hub(folder) as served:
        fetch(REPOSITORY, "main", served.url, tmp_path / "cache")
    assert "pooled/config.json" in served.sent
    assert "onnx/config.json" not in served.sent


def test_only_what_is_read_is_downloaded_once(
    served: Hub, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for revision in ("main", COMMIT):
        folder = fetch(REPOSITORY, revision, served.url, tmp_path)
        assert f"downloading {REPOSITORY}@{revision}\n" in capfd.readouterr().out
        assert (folder.repository, folder.revision) == (REPOSITORY, COMMIT)
    assert sorted(served.sent) == READ
    files = [path for path in folder.folder.rglob("*") if path.is_file()]
    assert sorted(path.relative_to(folder.folder).as_posix() for path in files) == READ


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        (["pytorch_model.bin", "tf_model.h5"], ["pytorch_model.bin"]),
        (["model.safetensors.index.json", "model-1-of-1.safetensors", "pytorch_model.bin"],
         ["model.safetensors.index.json", "model-1-of-1.safetensors"]),
        (["pytorch_model.bin.index.json", "pytorch_model-1-of-1.bin", "model-1-of-1.safetensors"],
         ["pytorch_model.bin.index.json", "pytorch_model-1-of-1.bin"]),
        (["2_Dense/config.json", "2_Dense/model.safetensors", "2_Dense/pytorch_model.bin"],
         ["2_Dense/config.json", "2_Dense/model.safetensors"]),
        (["model_head.pkl", "artifact.metadata", "additional_chat_templates/rag.jinja", "a.pkl"],
         ["artifact.metadata", "model_head.pkl", "additional_chat_templates/rag.jinja"]),
        (["spiece.model", "vocab.txt", "a/spiece.model", "0_A/b/vocab.txt"],
         ["spiece.model", "vocab.txt"]),
    ],
)  # fmt: skip
def test_weights_are_chosen_by_folder(listed: list[str], expected: list[str]) -> None:
    assert files_to_read(listed) == expected


@pytest.mark.parametrize(
    ("name", "revision", "gated", "offline", "words"),
    [
        (REPOSITORY, "v9", False, False, "it has no revision 'v9'"),
        ("org/other", "main", False, False, "neither the hub nor this machine has it"),
        (REPOSITORY, "main", True, False, "it is gated: ask for access on its page"),
        (REPOSITORY, "main", False, True, "HF_HUB_OFFLINE is set"),
        ("org/a--b", "main", False, False, "HFValidationError: "),
    ],
)
def test_what_cannot_be_downloaded_is_said_in_a_line(
    served: Hub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    revision: str,
    gated: bool,
    offline: bool,
    words: str,
) -> None:
    served.gated = gated
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
    with pytest.raises(DownloadError) as failed:
        fetch(name, revision, served.url, tmp_path)
    message = str(failed.value)
    assert message.startswith(f"{name} cannot be downloaded from {served.url}: {words}")
    assert "\n" not in message


def test_no_network_is_said_in_a_line(repository: Path, tmp_path: Path) -> None:
    with hub(repository) as ended:
        pass
    with pytest.raises(DownloadError, match=r": ConnectError: .+refused$"):
        fetch(REPOSITORY, "main", ended.url, tmp_path)


def test_a_folder_comes_before_a_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert address(REPOSITORY) == (REPOSITORY, "main")
    assert address(f"{REPOSITORY}@refs/pr/1") == (REPOSITORY, "refs/pr/1")
    (tmp_path / REPOSITORY).mkdir(parents=True)
    assert address(REPOSITORY) is None
    for name in ("tiny", "./org/other", "/org/other", "../org/other", "a/b/c"):
        assert address(name) is None


def test_the_manifest_records_where_a_model_came_from(
    served: Hub,
    repository: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, served.url)
    for name, value in (
        ("ENDPOINT", served.url),
        ("HUGGINGFACE_CO_URL_TEMPLATE", template),
        ("HF_HUB_CACHE", str(tmp_path / "cache")),
    ):
        monkeypatch.setattr(constants, name, value)
    local = shutil.copytree(repository, tmp_path / "tiny")
    command.export([REPOSITORY, "--check"])
    with Checkpoint(REPOSITORY).packed(NO_WISHES) as source:
        assert source.name == "tiny"
    assert source.origin == {
        "checkpoint": "tiny",
        "weights": {"model.safetensors": sha256(repository / "model.safetensors")},
        "unused": ["pooler.dense.bias", "pooler.dense.weight"],
        "repository": REPOSITORY,
        "revision": COMMIT,
    }
    for name in (REPOSITORY, str(local)):
        model, wishes = checkpoint_of(source.origin, NO_WISHES, name)
        with model.packed(wishes) as again:
            assert again.origin == source.origin
    shown = capsys.readouterr().out.splitlines()
    assert f"checkpoint: {REPOSITORY}@{COMMIT}" in shown
    assert shown[-2:] == [f"downloading {REPOSITORY}@main", f"downloading {REPOSITORY}@{COMMIT}"]
