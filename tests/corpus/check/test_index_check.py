"""`addnorm check`: stored vectors beside those of a server and of a bundle."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from addnorm.corpus.check import check_command
from addnorm.corpus.check.index_check import report
from addnorm.corpus.embeddings_client import Embedded
from addnorm.corpus.fingerprint_differences import Difference
from addnorm.corpus.job_plan import PLAN_KEY
from addnorm.corpus.vectors_file import Sample
from addnorm.service.engine.fingerprint import ANY, METADATA_KEY, Recorded, digest_of, to_text
from tests.support.texts import TEXT_MODEL, WORDS

NUM_TEXTS = 50
Array = NDArray[Any]


@pytest.fixture(scope="module")
def texts() -> list[str]:
    words = [word for word in WORDS if word.isalpha()]
    draws = np.random.default_rng(0)
    return [" ".join(draws.choice(words, 3 + row % 7)) for row in range(NUM_TEXTS)]


@pytest.fixture(scope="module")
def parts(text_client: httpx.Client) -> dict[str, str]:
    """The parts of the fingerprint of the model that embeds."""
    entry = text_client.get(f"/v1/models/{TEXT_MODEL}").json()
    return entry["fingerprint_parts"]["fp32"]  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def vectors(text_client: httpx.Client, texts: list[str]) -> Array:
    """Vectors as the server returns them, in JSON."""
    body = {"model": TEXT_MODEL, "input": texts}
    data = text_client.post("/v1/embeddings", json=body).json()["data"]
    return np.array([entry["embedding"] for entry in data], np.float32)


Check = Callable[..., dict[str, Any]]


@pytest.fixture
def check(text_url: str, texts: list[str], tmp_path: Path) -> Check:
    file, report = tmp_path / "vectors.parquet", tmp_path / "report.json"

    def check(vectors: Any, *options: str, fingerprint: str | None = None) -> dict[str, Any]:
        """The report on stored vectors; by default of the server's model. A list becomes the column
        as it is; an array becomes lists of one size."""
        if isinstance(vectors, np.ndarray):
            vectors = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
        table = pa.table({"text": texts[: len(vectors)], "vector": vectors})
        if fingerprint:
            table = table.replace_schema_metadata({METADATA_KEY: fingerprint})
        pq.write_table(table, file, row_group_size=8)
        if "--model" not in options:
            options = ("--model", f"{text_url}#{TEXT_MODEL}", *options)
        with pytest.raises(SystemExit) as ended:
            check_command.check([str(file), "--json", str(report), *options])
        figures: dict[str, Any] = json.loads(report.read_text())
        assert ended.value.code == figures["exit_code"]
        return figures

    return check


def pinned(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        check_command.pin(words) if words[0] != "--pin" else check_command.check(words)
    return ended.value.code  # type: ignore[return-value]


def test_a_pin_is_moved_by_bits_and_not_by_versions(
    text_url: str, text_bundles: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, bundle = tmp_path / "pin.json", ("--model", str(text_bundles / TEXT_MODEL / "1"))
    server = ("--model", f"{text_url}#{TEXT_MODEL}")
    assert pinned(str(file), *bundle) == check_command.EQUAL
    pin = json.loads(file.read_text())
    assert pinned("--pin", str(file), *server) == check_command.EQUAL
    record = pin["precisions"]["fp32"]
    parts = {**record, "numpy": "0.1"}
    bits, _ = parts.pop("bits"), parts.pop("fingerprint")
    record |= json.loads(to_text(parts, bits))
    file.write_text(json.dumps(pin))
    capsys.readouterr()
    assert pinned("--pin", str(file), *server) == check_command.EQUAL
    assert "fp32: no bit moved; numpy (stored 0.1, now" in capsys.readouterr().out
    for name in ("answers", "tokens"):
        record["bits"] = {**bits, name: "0" * 32}
        file.write_text(json.dumps(pin))
        assert pinned("--pin", str(file), *server) == check_command.DIFFERENT
    assert "fp32: bits moved" in capsys.readouterr().out


def test_what_cannot_be_pinned_is_said(
    text_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (broken := tmp_path / "pin.json").write_text("[]")
    for words, message in (
        (("--pin", str(broken), "--model", text_url), "is no file of `addnorm pin`"),
        ((str(tmp_path / "a"), "--model", text_url), "write URL#NAME"),
        ((str(tmp_path), "--model", f"{text_url}#{TEXT_MODEL}"), "is a folder: give a file"),
        (("--pin", str(broken), "none", "--model", text_url), "a file of vectors, or --pin"),
    ):
        assert pinned(*words) == check_command.CANNOT_CHECK
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_the_servers_own_vectors_are_bit_equal(
    dtype: str, vectors: Array, parts: dict[str, str], check: Check
) -> None:
    figures = check(vectors.astype(dtype), fingerprint=to_text(parts))
    assert (figures["verdict"], figures["exit_code"]) == ("bit-equal", 0)
    assert figures["figures"]["num_rows"] == NUM_TEXTS
    assert figures["figures"]["neighbours_shared"] == 1
    assert figures["fingerprint"]["equal"] is True


def test_a_bundle_gives_them_without_a_server(
    vectors: Array, text_bundles: Path, check: Check
) -> None:
    bundle = ("--model", str(text_bundles / TEXT_MODEL / "1"))
    figures = check(vectors.tolist(), *bundle)  # lists of any size
    assert (figures["verdict"], figures["exit_code"]) == ("bit-equal", 0)
    assert figures["fingerprint"]["stored"] is None


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_small_vectors_are_bit_equal(
    dtype: str, text_client: httpx.Client, texts: list[str], check: Check
) -> None:
    body = {"model": TEXT_MODEL, "input": texts, "dtype": dtype}
    data = text_client.post("/v1/embeddings", json=body).json()["data"]
    stored = np.array([entry["embedding"] for entry in data], dtype)
    assert check(stored)["verdict"] == "bit-equal"


def test_one_changed_byte_is_found(vectors: Array, parts: dict[str, str], check: Check) -> None:
    changed = vectors.copy()
    changed[29].view(np.uint8)[4] ^= 1  # the last bit of a number
    figures = check(changed, "--accept", "rounding", fingerprint=to_text(parts))
    assert (figures["verdict"], figures["exit_code"]) == ("some rows", 1)
    assert figures["figures"]["different_rows"] == [29]
    assert figures["figures"]["largest_difference_row"] == 29
    assert "the file's texts or vectors changed" in figures["meaning"]


def test_rows_in_another_order_are_told(
    vectors: Array, parts: dict[str, str], check: Check
) -> None:
    """Also where the fingerprint is equal."""
    figures = check(vectors[::-1], fingerprint=to_text(parts))
    assert (figures["verdict"], figures["exit_code"]) == ("other rows", 1)
    assert "rows are in a different order" in figures["meaning"]
    assert figures["figures"]["of_other_rows"] > 0.9


def test_vectors_of_zeros_are_told(
    vectors: Array, check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = check(np.zeros_like(vectors))
    assert figures["meaning"] == "all stored vectors are zero, so no vectors were stored"
    assert figures["figures"]["neighbours_shared"] is None
    printed = capsys.readouterr()
    assert f"stored vectors that are zero: {NUM_TEXTS}" in printed.out
    assert printed.err == ""  # no bars where there is no terminal


def test_vectors_of_another_model_are_told(task_url: str, vectors: Array, check: Check) -> None:
    same_width = ("--dimensions", str(vectors.shape[1]))
    figures = check(vectors, "--model", f"{task_url}#embedder", *same_width)
    assert (figures["verdict"], figures["exit_code"]) == ("other vectors", 1)
    assert figures["figures"]["neighbours_shared"] < 0.9


def test_rounding_is_accepted_if_asked(vectors: Array, check: Check) -> None:
    near = vectors * np.float32(1 + 1e-6)
    figures = check(near)
    assert (figures["verdict"], figures["exit_code"]) == ("rounding", 1)
    assert check(near, "--accept", "rounding")["exit_code"] == 0


def test_the_part_of_the_fingerprint_that_differs_is_named(
    vectors: Array, parts: dict[str, str], check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the vectors are equal all the same."""
    kind = "Linux x86_64 avx1024"  # that did not give the bits of the certificate
    other = to_text(parts | {"onnxruntime": "1.2.3", "processor": kind})
    figures = check(vectors, fingerprint=other)
    assert (figures["verdict"], figures["exit_code"]) == ("bit-equal", 0)
    assert figures["meaning"].endswith("though the fingerprint differs")
    named = {entry["part"]: entry["stored"] for entry in figures["fingerprint"]["differences"]}
    assert named == {"onnxruntime": "1.2.3", "processor": kind}
    report_text = capsys.readouterr().out
    assert f"onnxruntime (stored 1.2.3, now {parts['onnxruntime']})" in report_text
    assert f"processor (stored {kind}, now {parts['processor']})" in report_text
    assert parts["processor"].startswith(ANY)


def test_of_two_processor_classes_only_what_differs_is_named() -> None:
    difference = Difference("processor", "Linux x86_64 avx avx1024", "Linux x86_64 avx")
    assert str(difference) == "processor (stored avx1024, now without)"


def test_a_bare_digest_names_no_part(
    vectors: Array, parts: dict[str, str], check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = "0" * 32
    assert check(-vectors, fingerprint=bare)["fingerprint"]["equal"] is False
    assert "its parts were not stored, so the cause cannot be determined" in capsys.readouterr().out
    # what is given wins over the file's
    given = check(-vectors, "--fingerprint", digest_of(parts), fingerprint=bare)
    assert given["fingerprint"]["equal"] is True


def test_a_bare_digest_of_another_precision_names_it() -> None:
    """Each precision has bits of its own: these name no processor."""
    parts = {
        digest: {"precision": name, "processor": f"{ANY} {digest}"}
        for name, digest in (("fp32", "a"), ("int8", "b"))
    }
    rows = np.arange(2)
    vectors = np.eye(2, dtype=np.float32)
    by_digest = {digest: Recorded(digest, each) for digest, each in parts.items()}
    served = Embedded(vectors, "m", by_digest["a"], by_digest)
    text = report(Sample(rows, ["a", "b"], vectors), served, Recorded("b", None))
    assert str(text.fingerprints).startswith("differs in precision (stored int8, now fp32); ")
    assert str(text.fingerprints).endswith(": write @int8 behind the model")


def test_a_prompt_and_cut_dimensions_are_options(
    task_client: httpx.Client, task_url: str, texts: list[str], check: Check
) -> None:
    body = {"model": "embedder", "input": texts, "prompt_name": "query", "dimensions": 5}
    data = task_client.post("/v1/embeddings", json=body).json()["data"]
    stored = np.array([entry["embedding"] for entry in data], np.float32)
    options = ("--model", f"{task_url}#embedder", "--dimensions", "5")
    assert check(stored, *options, "--prompt-name", "query")["verdict"] == "bit-equal"
    assert check(stored, *options)["verdict"] != "bit-equal"


def test_the_sample_is_seeded_and_its_rows_are_those_of_the_file(
    vectors: Array, check: Check
) -> None:
    """Every stored vector differs, so the report names all rows of the sample."""

    def rows(*options: str) -> list[int]:
        return check(-vectors, *options)["figures"]["different_rows"]  # type: ignore[no-any-return]

    some = rows("--sample", "9", "--seed", "1")
    assert some == rows("--sample", "9", "--seed", "1") == sorted(set(some))
    assert len(some) == 9
    assert some != rows("--sample", "9", "--seed", "2")
    assert rows() == list(range(NUM_TEXTS))


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The line of a check that cannot be made."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        check_command.check(arguments)
    assert ended.value.code == 2
    *_, line = capsys.readouterr().err.partition("\n`addnorm check --help`")[0].splitlines()
    assert line.startswith("addnorm check: ")
    return line


NAN = [[1.0, 2.0], [1.0, float("nan")]]
FILES: dict[str, tuple[dict[str, Any], str]] = {
    "null": ({"vector": [[1.0, 2.0], None]}, "row 1 has null instead of a vector"),
    "null number": ({"vector": [[1.0, 2.0], [1.0, None]]}, "row 1 has a vector with null"),
    "NaN": ({"vector": NAN}, "row 1 has a vector with a number that is not finite"),
    "sizes": (
        {"vector": [[1.0], [1.0, 2.0]]},
        "row 1 has a vector of 2 numbers, row 0 has one of 1",
    ),
    "no numbers": ({"vector": pa.array([[], []], pa.list_(pa.float32()))}, "without numbers"),
    "no vectors": ({"vector": [1.0, 2.0]}, "column 'vector' is double: vectors must be lists"),
    "whole numbers": (
        {"vector": [[1], [2]]},
        "vectors must be lists of the same size, of float, halffloat",
    ),
    "no text": ({"text": [1, 2]}, "column 'text' is int64, not text: choose a column of strings"),
    "text not UTF-8": (
        {"text": pa.array([b"a", b"\xff"]).view(pa.string())},
        "row 1 has a text that is not UTF-8",
    ),
    "null text": ({"text": [None, "a"]}, "row 0 has null instead of a text"),
    "width": (
        {},
        f"the stored vectors have 1 numbers, the vectors of {TEXT_MODEL} have 32: choose another",
    ),
    "other columns": ({"text": None}, "has no column 'text': choose one with --text-column; its"),
    "no rows": ({"text": pa.array([], pa.string()), "vector": []}, "has no rows"),
}


@pytest.mark.parametrize(("columns", "message"), FILES.values(), ids=FILES)
def test_a_file_that_does_not_fit_is_refused_in_one_line(
    columns: dict[str, Any], message: str, text_url: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    column_values = {"text": ["a", "b"], "vector": [[1.0], [2.0]]} | columns
    table = pa.table({name: column for name, column in column_values.items() if column is not None})
    pq.write_table(table, tmp_path / "v.parquet")
    options = (str(tmp_path / "v.parquet"), "--model", f"{text_url}#{TEXT_MODEL}")
    assert message in refusal(capsys, *options)


JOBS = {  # metadata -> what is said of it
    '{"options": {"precision": [1]}}': "its metadata addnorm.job: precision: Input should be a",
    '{"options": {"dimensions": -1}}': "its metadata addnorm.job: dimensions: Input should be",
    '{"columns": {"text": []}}': "its metadata addnorm.job: text: List should have at least 1",
    '{"columns": {"text": ["none"]}}': "has no column 'none'",
    # as if there were none
    "[1]": "'none' is not served here",
    '{"options": 3}': "'none' is not served here",
    "{": "'none' is not served here",
    "[" * 100_000: "'none' is not served here",
}


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job[:40])
def test_odd_metadata_is_told_in_one_line_or_ignored(
    job: str, text_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = pa.table({"text": ["a"], "vector": [[1.0]]}).replace_schema_metadata({PLAN_KEY: job})
    pq.write_table(table, tmp_path / "v.parquet")
    options = (str(tmp_path / "v.parquet"), "--model", f"{text_url}#none")
    assert JOBS[job] in refusal(capsys, *options)


def test_what_cannot_be_checked_is_said_in_one_line(
    vectors: Array, check: Check, text_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(vectors)
    file = str(tmp_path / "vectors.parquet")
    (tmp_path / "text").write_text("a,b\n")
    for arguments, message in (
        ([str(tmp_path / "none"), "--model", text_url], "No such file"),
        ([str(tmp_path), "--model", text_url], "is a folder: give one of its Parquet files"),
        ([str(tmp_path / "text"), "--model", text_url], "cannot be read as a Parquet file"),
        ([file, "--model", "http://127.0.0.1:9"], "does not answer"),
        ([file, "--model", f"{text_url}#none"], "'none' is not served here"),
        ([file, "--model", f"{text_url}#notebook"], "texts"),
        ([file, "--model", f"{text_url}#{TEXT_MODEL}@int8"], "has fp32"),
        ([file, "--model", text_url, "--fingerprint", "abc"], "--fingerprint: 'abc' is no"),
        ([file, "--model", str(tmp_path)], "there is no model"),
        ([file, "--model", "a" * 300], "File name too long"),
        (
            [file, "--model", "none"],
            "there is no model 'none': give ORG/NAME of the hub, the folder",
        ),
        ([file, "--model", "none", "--api-key-env", "HOME"], "applies to a server only"),
        ([file, "--model", "ftp://localhost"], "ftp://localhost is not the address of a server"),
        ([file, "--model", text_url, "--sample", "abc"], "'abc' is not a whole number above 0"),
        # before anything is read
        (["none", "--model", text_url, "--json", str(tmp_path)], "is a folder: give a file"),
        (
            ["none", "--model", text_url, "--json", "none/a"],
            "--json none/a: the folder none does not exist",
        ),
        (["none", "--model", text_url, "--api-key-env", "NO_SUCH"], "NO_SUCH is not set"),
        (["a" * 300 + ".parquet", "--model", text_url], "File name too long"),
    ):
        assert message in refusal(capsys, *arguments), arguments
