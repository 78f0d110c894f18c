"""`addnorm load`: what it refuses, and what it says of a server that it cannot measure."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from addnorm.load import command
from tests.support.fake_server import fake_server

FINITE, OR_0 = "must be a finite number above 0, not", "must be a finite number, 0 or more, not"
OPTIONS = [  # beside --bundle; what is printed
    ("--rate -1", f"--rate: {FINITE} -1"),
    ("--seconds nan", f"--seconds: {FINITE} nan"),
    ("--seconds inf", f"--seconds: {FINITE} inf"),
    ("--rate x", "--rate: invalid float value: 'x'"),
    ("--warm-up nan", f"--warm-up: {OR_0} nan"),
    ("--warm-up -1", f"--warm-up: {OR_0} -1"),
    ("--concurrency 0", "--concurrency: must be at least 1, not 0"),
    ("--concurrency x", "--concurrency: invalid int value: 'x'"),
    ("--zipf 1 --unique", "give one of them"),
    ("--distinct 9", "--distinct needs --zipf"),
    ("--requests 9", "--requests needs --zipf or --unique"),
    ("--zipf -1", "finite and at least 0, not -1.0"),
    ("--zipf nan", "finite and at least 0, not nan"),
    ("--zipf 1 --profile big", "choose another"),
    ("--zipf 1 --distinct 10000", "10,000 are needed"),
    ("--unique --requests 0", "must be at least 1, not 0"),
    ("--texts 3", "--texts needs --target or --beside"),
    ("--texts-file x", "--texts-file needs --beside"),
    ("--beside http://x --rate 3", "--rate cannot be used with --beside"),
    ("--beside http://x --precision int8", "--precision cannot be used with --beside"),
    ("--beside http://x --target 3", "give one of them"),
    ("--target 5", "--bundle cannot be used with --target"),
]
ALONE = [
    ("", "give --bundle, --target or --beside"),
    ("--target 5 --seconds 3", "--seconds cannot be used with --target"),
]


@pytest.mark.parametrize(
    ("options", "said"),
    [*((f"--bundle {{0}} {words}", message) for words, message in OPTIONS), *ALONE],
)
def test_options_without_effect_or_out_of_range_are_refused(
    notebook: Path, capsys: pytest.CaptureFixture[str], options: str, said: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.load([word.format(notebook) for word in options.split()])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


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
                command.load(["--bundle", str(notebook), "--url", url, *short])
            assert message in str(ended.value)
            assert "--model" in str(ended.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--bundle", "no/where/1"], "bundle no/where/1: the folder does not exist"),
        (["--json", "/nope/dir/x.json"], "--json /nope/dir/x.json cannot be written: No such file"),
        (["--json", "/"], "--json / cannot be written: Is a directory"),
        (["--precision", "fp8"], "notebook/1 has fp32, not fp8"),
        (["--api-key-env", "NO_KEY"], "the environment variable NO_KEY is not set"),
    ],
)
def test_a_load_that_cannot_end_well_does_not_begin(
    notebook: Path, options: list[str], said: str
) -> None:
    with pytest.raises(SystemExit, match=said) as ended:
        command.load(["--bundle", str(notebook), *options])
    assert "\n" not in str(ended.value)


def test_a_key_opens_the_server_and_its_metrics(
    notebook: Path,
    serve: Callable[..., AbstractContextManager[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key, result = "load-0123456789abcdef", tmp_path / "result.json"
    what = ["--bundle", str(notebook), "--model", "notebook", "--json", str(result)]
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


def test_the_example_in_the_help_names_the_readmes_bundle(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        command.load(["--help"])
    shown = " ".join(capsys.readouterr().out.split()).replace("- ", "-")
    example = shown.partition("Example: ")[2]
    named = "bundles/all-minilm-l6-v2/1 --model all-minilm-l6-v2"
    assert example.startswith(f"addnorm load --bundle {named}")
    assert named in Path("docs/performance.md").read_text()
