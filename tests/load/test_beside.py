"""`addnorm load beside`: two servers get the same texts in turn."""

import json
from pathlib import Path

import pytest

from addnorm.load import command
from tests.support.fake_server import fake_server

NUM_TEXTS = 12


def exact(body: bytes) -> tuple[int, bytes]:
    """Each text's vector is of its length alone; the answer is in another order."""
    texts = json.loads(body)["input"]
    data = [{"index": at, "embedding": [len(text), 1.0]} for at, text in enumerate(texts)]
    return 200, json.dumps({"data": data[::-1]}).encode()


def of_its_batch(body: bytes) -> tuple[int, bytes]:
    """A vector that changes with the longest text beside it, as one scale for a batch does."""
    assert (json.loads(body)["model"], json.loads(body)["precision"]) == ("there", "int8")
    texts = json.loads(body)["input"]
    scale = max(map(len, texts))
    data = [{"index": at, "embedding": [len(text), scale]} for at, text in enumerate(texts)]
    return 200, json.dumps({"data": data}).encode()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    lines = ["a" * (length + 1) for length in range(NUM_TEXTS)]
    (tmp_path / "texts.txt").write_text("\n".join(lines))
    return tmp_path / "texts.txt"


def test_speed_bits_and_vectors_of_both_are_told(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = set[str]()
    with fake_server(exact, paths=paths) as one, fake_server(of_its_batch, paths=paths) as other:
        sides = [f"http://127.0.0.1:{one.port}", f"http://127.0.0.1:{other.port}/v3#there@int8"]
        options = ["--texts-file", str(file), "--seconds", "0.1", "--texts", "3"]
        command.load(["beside", *sides, *options])
    output = capsys.readouterr().out
    assert paths == {"/v1/embeddings", "/v3/embeddings"}
    assert f"0 of {NUM_TEXTS} texts change their bits" in output
    assert output.count("texts change their bits") == 2
    assert output.count(f" 0 of {NUM_TEXTS} texts") == 1, "the second changes with its batch"
    assert " x as fast as the second" in output
    assert "vectors: cosine" in output


@pytest.mark.parametrize(
    ("status", "answer", "said"),
    [
        (404, b"no such model", "404 no such model"),
        (200, b"<html>", "no vectors in <html>"),
        (200, b'{"error": "busy"}', "no vectors in"),
        (200, b'{"data": [{"index": 0, "embedding": "AAAA"}]}', "no vectors in"),
        (200, b'{"data": []}', "0 vectors for 1 texts"),
    ],
)
def test_what_does_not_answer_ends_it_in_one_line(
    file: Path, status: int, answer: bytes, said: str
) -> None:
    with fake_server(exact) as one, fake_server(lambda _: (status, answer)) as other:
        sides = [f"http://127.0.0.1:{server.port}" for server in (one, other)]
        with pytest.raises(SystemExit, match=f"/v1/embeddings: {said}"):
            command.load(["beside", *sides, "--texts-file", str(file)])
