"""What the documents say is run: every curl line against the server, every make target, every path."""

import json
import re
import shlex
from pathlib import Path

import httpx
import numpy as np
import pytest

from service.settings import Settings

ROOT = Path(__file__).parent.parent
NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
README = (ROOT / "README.md").read_text()
CURLS = re.findall(r"```sh\n(curl .+)\n```\n```json\n(.+)\n```", README)


def numbers(text: str) -> list[float]:
    return [float(number) for number in NUMBER.findall(text)]


@pytest.mark.parametrize(("command", "shown"), CURLS)
def test_the_readmes_curl_lines_answer_what_it_shows(client: httpx.Client, command: str, shown: str) -> None:
    request, _, cut = command.partition(" | cut -c1-")
    words = shlex.split(request)
    body = words[words.index("-d") + 1]
    path = next(word for word in words if word.startswith("localhost:8000")).removeprefix("localhost:8000")
    answer = client.post(path, content=body, headers={"content-type": "application/json"}).text
    expected = shown[: shown.rfind(",")] if cut else shown  # the last number may be cut in two
    got = answer[: len(expected)] if cut else answer
    assert NUMBER.sub("#", got) == NUMBER.sub("#", expected)
    np.testing.assert_allclose(numbers(got), numbers(expected), atol=1e-5)


def test_there_are_curl_lines() -> None:
    assert len(CURLS) == 3
    for command, _ in CURLS:
        json.loads(shlex.split(command.partition(" | ")[0])[-1])


def test_named_make_targets_and_files_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for name in ("README.md", "ARCHITECTURE.md"):
        text = (ROOT / name).read_text()
        for target in re.findall(r"`?make ([a-z][a-z-]*)[ `]", text):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE) or target == "are", f"{name}: make {target}"
        for path in re.findall(r"`((?:model|export|service|tests|load)/[\w/.]+)`", text):
            assert (ROOT / path).exists(), f"{name}: {path}"
        for setting in re.findall(r"ADDNORM_([A-Z_]+)", text):
            assert setting.lower() in Settings.model_fields, f"{name}: ADDNORM_{setting}"
