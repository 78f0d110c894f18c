"""`addnorm load`: what it refuses, and what it says of a server that it cannot measure."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from addnorm.load import command, options, stream
from tests.support.fake_server import fake_server

FINITE, OR_0 = "is not a finite number above 0", "is not a finite number, 0 or more"
OPTIONS = [  # of a command; what is printed
    ("run {0} --rate -1", f"--rate: '-1' {FINITE}"),
    ("run {0} --seconds nan", f"--seconds: 'nan' {FINITE}"),
    ("run {0} --seconds inf", f"--seconds: 'inf' {FINITE}"),
    ("run {0} --rate x", f"--rate: 'x' {FINITE}"),
    ("run {0} --warm-up nan", f"--warm-up: 'nan' {OR_0}"),
    ("run {0} --warm-up -1", f"--warm-up: '-1' {OR_0}"),
    ("run {0} --concurrency 0", "--concurrency: '0' is not a whole number above 0"),
    ("run {0} --concurrency x", "--concurrency: 'x' is not a whole number above 0"),
    ("run {0} --zipf 1 --unique", "--unique: not allowed with argument --zipf"),
    ("run {0} --distinct 9", "--distinct needs --zipf"),
    ("run {0} --requests 9", "--requests needs --zipf or --unique"),
    ("run {0} --zipf -1", "finite and at least 0, not -1.0"),
    ("run {0} --zipf nan", "finite and at least 0, not nan"),
    ("run {0} --zipf 1 --profile big", "choose another"),
    ("run {0} --zipf 1 --distinct 10000", "10,000 are needed"),
    ("run {0} --unique --requests 0", "'0' is not a whole number above 0"),
    ("run {0} --target 3", "unrecognized arguments: --target 3"),
    ("run", "the following arguments are required: MODEL[@PRECISION]"),
    ("beside http://x http://y --rate 3", "unrecognized arguments: --rate 3"),
    ("hold http://x", "the following arguments are required: --target"),
    ("hold http://x --target 5 --seconds 3", "unrecognized arguments: --seconds 3"),
    ("", "the following arguments are required: measurement"),
    ("--url http://x", "argument measurement: invalid choice: 'http://x'"),
]


@pytest.mark.parametrize(("words", "said"), OPTIONS)
def test_options_without_effect_or_out_of_range_are_refused(
    notebook: Path, capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.load([word.format(notebook) for word in words.split()])
    assert ended.value.code == 2
    problem, hint = capsys.readouterr().err.splitlines()
    assert said in problem
    assert hint.endswith(" --help` lists all options")


REFUSALS: tuple[tuple[int, bytes, str], ...] = (  # an answer, and what is said of it
    (400, b'{"error": {"message": "model is missing; served: a"}}', "400: model is missing; ser"),
    (503, b"<p>of a\nproxy", "503: <p>of a proxy"),
    (404, b'{"error": 7}', '404: {"error": 7}'),
    (200, b'{"pooled": [[1.0]]}', "the answers differ from the answers of notebook/1"),
)


def test_a_server_that_gives_no_right_answer_is_quoted(notebook: Path) -> None:
    """And the option that is often the cause is named."""
    short = ["--seconds", "0.01", "--warm-up", "0"]
    given = dict[str, tuple[int, bytes]]()
    with fake_server(lambda _: given["answer"]) as server:
        url = f"http://{server.host}:{server.port}"
        for status, content, message in REFUSALS:
            given["answer"] = (status, content)
            with pytest.raises(SystemExit) as ended:
                command.load(["run", str(notebook), "--url", url, *short])
            assert message in str(ended.value)
            assert "--url URL#NAME" in str(ended.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("{0} --url localhost:8000", "localhost:8000 is not the address of a server"),
        ("{0} --json /nope/x.json", "--json /nope/x.json cannot be written: No such file"),
        ("{0} --json /", "--json / cannot be written: Is a directory"),
        ("{0} --api-key-env NO_KEY", "the environment variable NO_KEY is not set"),
        ("nobody", "there is no model"),
        ("no/where/1", "there is no model"),
        ("{0}@int8", "has fp32, not int8"),
    ],
)
def test_a_load_that_cannot_end_well_does_not_begin(notebook: Path, words: str, said: str) -> None:
    with pytest.raises(SystemExit, match=said) as ended:
        command.load(["run", *words.format(notebook).split()])
    assert "\n" not in str(ended.value)


def test_a_key_opens_the_server_and_its_metrics(
    notebook: Path,
    serve: Callable[..., AbstractContextManager[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key, result = "load-0123456789abcdef", tmp_path / "result.json"
    what = ["run", f"{notebook}@fp32", "--json", str(result)]
    what += ["--seconds", "0.1", "--warm-up", "0", "--concurrency", "1"]
    monkeypatch.setenv("KEY", key)
    with serve(api_keys=f"load infer,metrics {key}") as url:
        with pytest.raises(SystemExit, match="401"):
            command.load([*what, "--url", url])
        command.load([*what, "--url", url, "--api-key-env", "KEY"])
    assert json.loads(result.read_text())["result"]["cache"] is not None


def test_looking_whether_a_file_can_be_written_changes_none(tmp_path: Path) -> None:
    kept, new = tmp_path / "kept", tmp_path / "new"
    kept.write_text("of before")
    for path in (kept, new):
        command._must_be_writable("--json", path)
    assert kept.read_text() == "of before"
    assert not new.exists()


def test_the_options_name_all_profiles() -> None:
    assert tuple(stream.PROFILES) == options.PROFILES
