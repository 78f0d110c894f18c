"""What a bare name means."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.names import read_pins
from addnorm.service.errors import StartupError
from addnorm.service.loading.loader import load_all
from addnorm.service.settings import Settings
from benchmarks.stress.copies import republish
from tests.conftest import client_of, inference_of


def test_a_pin_is_a_version() -> None:
    written = Settings.model_validate({"versions": "a=1, b=12, c=latest"}).versions
    assert read_pins(written) == {"a": 1, "b": 12}


@pytest.mark.parametrize("written", ["newest", "0", "1?share=1", "-1"])
def test_what_is_no_pin_ends_the_start(written: str) -> None:
    with pytest.raises(StartupError, match="write latest or VERSION"):
        read_pins({"notebook": written})


@pytest.mark.parametrize(
    ("name", "words"),
    [("notebook", "has no version '7': it has 1"), ("bert", "'bert/7' is not served")],
)
def test_a_pin_to_what_is_not_served_ends_the_start(small: Path, name: str, words: str) -> None:
    with pytest.raises(StartupError, match=f"ADDNORM_VERSIONS: {name}=7: .*{words}"):
        load_all(small, Settings(versions={name: "7"}))


def test_one_command_rolls_back_and_another_goes_on(notebook: Path, tmp_path: Path) -> None:
    for version in (1, 2):
        republish(bundles.read(notebook), tmp_path, version)
    body: dict[str, Any] = {"model": "notebook", "input": [[1, 3, 4], [5, 2]]}
    pins = "/v2/repository/models/notebook"
    settings = {"admin": True, "answer_versions": True, "versions": {"notebook": "2"}}
    with client_of(inference_of(tmp_path, **settings)) as client:

        def answers() -> str:
            answer: httpx.Response = client.post("/v1/embeddings", json=body)
            assert answer.status_code == 200, answer.text
            return str(answer.json()["model"])

        assert answers() == "notebook/2"
        assert client.post(f"{pins}/1/pin").status_code == 200
        assert answers() == "notebook/1"
        assert client.get("/v1/models").json()["data"][0]["version"] == "1"
        assert client.post(f"{pins}/latest/pin").status_code == 200
        assert answers() == "notebook/2"
        assert client.post(f"{pins}/7/pin").status_code == 404
        assert client.post(f"{pins}/one/pin").status_code == 400
        assert client.post(f"{pins}/1/pin", json={"share": 1}).status_code == 400
        assert answers() == "notebook/2"
        assert client.post(f"{pins}/2/pin").status_code == 200
        client.post(f"{pins}/2/unload")
        gone = client.post("/v1/embeddings", json=body)  # never silently another version
        assert (gone.status_code, "it has 1; it is pinned" in gone.text) == (404, True)
