"""One way to name a model, in all commands."""

import json
from pathlib import Path

import pytest

from addnorm.service.command import serve_parser, with_names
from addnorm.service.engine.bundle import MANIFEST
from addnorm.service.errors import StartupError
from addnorm.service.loading import folders
from addnorm.service.loading.addresses import Address, find, find_version
from addnorm.service.settings import Settings
from tests.support.texts import TEXT_MODEL


@pytest.fixture
def bundles(tmp_path: Path) -> Path:
    """Two versions of a model, and one of another, by their manifests alone."""
    for name, version, precisions in (
        ("own", 9, ["fp32"]),
        ("own", 10, ["int8", "fp32"]),
        ("other", 1, ["fp32"]),
    ):
        folder = tmp_path / "bundles" / name / str(version)
        folder.mkdir(parents=True)
        content = {"precisions": dict.fromkeys(precisions, "model.onnx")}
        (folder / MANIFEST).write_text(json.dumps(content))
    return tmp_path / "bundles"


@pytest.mark.parametrize(
    ("text", "name", "precisions"),
    [
        ("org/name", "org/name", ()),
        ("org/name@int8", "org/name", ("int8",)),
        ("org/name@main", "org/name@main", ()),
        ("org/name@main@int8,fp32", "org/name@main", ("int8", "fp32")),
        ("a@b/1@fp16", "a@b/1", ("fp16",)),
        ("http://user@host:80/x#own@int8", "http://user@host:80/x#own", ("int8",)),
        ("own@int9", "own@int9", ()),
        ("@int8", "@int8", ()),
    ],
)
def test_a_precision_stands_behind_the_name(
    text: str, name: str, precisions: tuple[str, ...]
) -> None:
    assert Address.parse(text) == (name, precisions)
    assert str(Address.parse(text)) == text


def test_a_url_is_a_server_and_a_model_of_it() -> None:
    assert Address.parse("https://host/x#a/1@int8").server == ("https://host/x", "a/1")
    assert Address.parse("http://host").server == ("http://host", None)
    assert Address.parse("org/name").server is None
    for text in ("ftp://host", "http://"):
        with pytest.raises(StartupError, match="is not the address of a server"):
            _ = Address(text).server


@pytest.mark.parametrize(
    "form", ["{0}/own", "{0}/own/10", "own", "own/10", "own@int8", "{0}/own/10@int8,fp32"]
)
def test_every_name_of_a_bundle_finds_its_newest_version(bundles: Path, form: str) -> None:
    address = Address.parse(form.format(bundles))
    assert find_version(address, bundles) == bundles / "own" / "10"


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("nobody", "there is no model 'nobody': give ORG/NAME of the hub, the folder of a check"),
        ("no/such/folder@int8", "there is no model 'no/such/folder@int8'"),
        ("{0}", "there is no model"),
        ("own@fp16", "own has int8, fp32, not fp16"),
        ("{0}/other@fp32,int8", "other has fp32, not int8"),
        ("a" * 300, "File name too long"),
        ("http://host#own", "is a server, but the model runs here"),
    ],
)
def test_another_name_is_told_the_ways(bundles: Path, form: str, words: str) -> None:
    with pytest.raises(StartupError, match=words):
        find_version(Address.parse(form.format(bundles)), bundles)


def test_a_server_has_the_models_that_are_named(bundles: Path) -> None:
    """All versions of a name, or one; precisions and names of a hub go with them."""
    models = [Address.parse(text) for text in ("own@int8", "other/1")]
    roots = tuple(find(models, bundles))
    listed = [path.relative_to(bundles).as_posix() for path in folders.listing(roots).paths]
    assert listed == ["other/1", "own/9", "own/10"]
    settings = with_names(
        Settings(default_precision={"*": "fp32"}), models, ["?dimensions=3", ""], roots
    )
    assert settings.aliases == {"own": "own?dimensions=3"}
    assert settings.default_precision == {"*": "fp32", "own": "int8"}
    of_hub = with_names(Settings(), [Address("org/own@main")], ["?windows=9"], roots[:1])
    assert of_hub.aliases == {"org/own": "own?windows=9", "own": "own?windows=9"}
    with pytest.raises(StartupError, match="two of the models are called own"):
        with_names(Settings(), [models[0]] * 2, ["", ""], roots[:1] * 2)


def test_models_stand_anywhere_on_the_command_line(bundles: Path) -> None:
    options = serve_parser().parse_args(["a", "--port", "0", "--bundles", str(bundles)])
    assert (options.models, options.port, options.bundles) == (["a"], "0", bundles)


def test_a_bundle_that_is_served_alone_is_found_again(text_bundles: Path) -> None:
    (path,) = folders.listing((text_bundles / TEXT_MODEL / "1",)).paths
    assert path == text_bundles / TEXT_MODEL / "1"
