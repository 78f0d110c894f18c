"""The page of `addnorm load --html`: what it holds, what it asks for, and what it measures."""

import json
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from addnorm.load import command
from addnorm.load.measure.check import alone
from addnorm.load.measure.contender import FP32, INT8, NAIVE
from addnorm.load.measure.rounds import Timing
from addnorm.load.measure.run import Figures
from addnorm.load.measure.stream import SWEEP_LONGEST
from addnorm.load.sweep import curves, overview
from addnorm.load.sweep import plan as sweep
from addnorm.load.sweep.overview import Findings
from addnorm.load.sweep.tables import TITLES
from addnorm.service import VERSION
from addnorm.service.runtime import bundle as bundle_format
from tests.support.fake_server import fake_server

MOST_BYTES = 300_000
WHERE: dict[str, str | int | float] = {
    "date": "2026-01-01T12:00+00:00",
    "processor": "of a test",
    "cores": 2,
    "load_average": 0.5,
    "onnxruntime": "1",
}


@pytest.fixture(scope="module")
def findings(notebook: Path) -> Findings:
    """Made up: each server twice as fast as the one before."""
    figures: dict[str, list[Figures]] = {}
    points: dict[str, list[Figures]] = {}
    for factor, who in enumerate((NAIVE, FP32, INT8), 1):
        for line in ("small-1", "small-32", *(f"longest-{n}" for n in SWEEP_LONGEST)):
            ms = {"p50_ms": 40.0 / factor, "p99_ms": 90.0 / factor}
            run = {"tokens_per_s": 1000.0 * 2**factor, "requests_per_s": 10.0 * factor, **ms}
            figures[f"{line}/{who}"] = [run, {**run, "tokens_per_s": 900.0 * 2**factor}]
        points[who] = [{"rate": 10.0 * n, "p50_ms": 20.0 + n, "p99_ms": 60.0 + n} for n in range(4)]
    bits = {who: {"num_answers": 1000.0, "num_errors": 0.0} for who in (FP32, INT8)}
    titles = {**TITLES, NAIVE: "<b>theirs</b>"}
    bundle = bundle_format.read(notebook)
    return Findings(bundle, WHERE, figures, points, bits, [], titles)


@pytest.fixture(scope="module")
def page(findings: Findings) -> str:
    text = sweep.text(findings, {"command": "`addnorm load`"})
    return overview.page("A title", findings, text)


def test_the_page_stands_alone(page: str) -> None:
    """No script, nothing to load, and a policy that says so."""
    assert "default-src 'none'" in page
    assert not re.search(r"<(script|link|img|iframe|object|image)\b", page)
    assert not re.search(r"(?:src|href)=\"(?!#)", page.replace("xlink:href", "href"))
    assert not re.search(r"url\((?!#)|@import", page)
    assert len(page.encode()) < MOST_BYTES


def test_the_page_has_plots_of_all_servers_in_the_pages_colours(page: str) -> None:
    assert page.count("<svg role=") == 3
    assert [page.count(f">{name}<") for name in ("Addnorm fp32", "Addnorm int8")] >= [3, 3]
    assert not any(colour in page.partition("</style>")[2] for colour in curves.VARIABLES)
    ids = re.findall(r' id="([^"]+)"', page)
    used = set(re.findall(r"(?:url\(|href=\")#([^)\"]+)", page))
    assert used <= set(ids)
    for svg in re.findall(r"<svg.+?</svg>", page, re.DOTALL):
        own = re.findall(r' id="([^"]+)"', svg)
        assert [ids.count(name) for name in own] == [1] * len(own)


def test_the_page_says_what_was_measured(page: str) -> None:
    """Ratios over the baseline, under the baseline's own name, which is text and not HTML."""
    assert "<dt>2.0 x</dt>" in page
    assert "&lt;b&gt;theirs&lt;/b&gt;" in page
    assert "<b>theirs" not in page
    assert "2,000</dt><dd>of 2,000 answers have the bits" in page
    assert "<code>addnorm load</code>" in page
    assert "<strong>2.00 x</strong>" in page


def test_a_warning_stands_above_all_figures(findings: Findings) -> None:
    warned = overview.page("A title", replace(findings, warning="of a cache"), "")
    assert 0 < warned.index("of a cache") < warned.index("<dt>")


def test_the_same_figures_give_the_same_page(findings: Findings, page: str) -> None:
    assert page == overview.page(
        "A title", findings, sweep.text(findings, {"command": "`addnorm load`"})
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--html", "x", "--rate", "9"], "--rate is of one load"),
        (["--html", "x", "--most-alone", "9"], "--most-alone is of one load"),
        (["--beside", "http://localhost:1"], "--beside is of --html"),
        (["--html", "x", "--profile", "small"], "--profile is of one load"),
        (["--html", "x", "--concurrency", "8"], "--concurrency is of one load"),
        (["--minutes", "4"], "--minutes is of --html"),
        (["--html", "x", "--beside", "naive"], "must be like naive=http"),
        (["--minutes", "nan"], "--minutes: must be a finite number above 0, not nan"),
        (["--minutes", "-1"], "--minutes: must be a finite number above 0, not -1"),
        (["--seconds", "inf"], "--seconds: must be a finite number above 0, not inf"),
        (["--rate", "x"], "--rate: invalid float value: 'x'"),
        (["--warm-up", "nan"], "--warm-up: must be a finite number, 0 or more, not nan"),
        (["--warm-up", "-1"], "--warm-up: must be a finite number, 0 or more, not -1"),
        (["--concurrency", "0"], "--concurrency: must be at least 1, not 0"),
        (["--concurrency", "x"], "--concurrency: invalid int value: 'x'"),
    ],
)
def test_options_without_effect_or_out_of_range_are_refused(
    notebook: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.load(["--bundle", str(notebook), *options])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def naive(notebook: Path) -> Callable[[bytes], tuple[int, bytes]]:
    compute = alone(bundle_format.read(notebook), FP32)

    def answer(body: bytes) -> tuple[int, bytes]:
        asked = orjson.loads(body)
        grid = zip(asked["input_ids"], asked["attention_mask"], strict=True)
        rows = [compute("pooled", np.array(ids)[np.array(mask) != 0]) for ids, mask in grid]
        return 200, orjson.dumps({"pooled": np.stack(rows)}, option=orjson.OPT_SERIALIZE_NUMPY)

    return answer


def test_a_server_is_measured_beside_another(
    notebook: Path,
    serve: Callable[..., AbstractContextManager[str]],
    tmp_path: Path,
) -> None:
    """A short run. The model is too short for the sweep of padding, which is left out."""
    files = {name: tmp_path / f"report.{name}" for name in ("html", "json")}
    words = [word for name, file in files.items() for word in (f"--{name}", str(file))]
    with serve() as url, fake_server(naive(notebook)) as other:
        beside = f"theirs=http://{other.host}:{other.port}"
        what = ["--bundle", str(notebook), "--model", "notebook", "--minutes", "0.01"]
        command.load(["--url", url, *what, "--beside", beside, *words], Timing((0.1, 0.1), 5))
    seen: dict[str, Any] = json.loads(files["json"].read_text())
    assert set(seen["figures"]) == {f"small-{n}/{who}" for n in (1, 32) for who in (FP32, NAIVE)}
    assert all(count["num_answers"] > 10 for count in seen["bits"].values())
    assert all(count["num_errors"] == 0 for count in seen["bits"].values())
    page = files["html"].read_text()
    assert page.count("<svg role=") == 2
    assert "notebook/1 under load, beside theirs" in page
    assert f"Addnorm {VERSION}" in seen["facts"]["server"]


def test_a_server_that_answers_wrongly_is_not_measured(notebook: Path, tmp_path: Path) -> None:
    with fake_server(lambda _: (200, b'{"pooled": [[1.0]]}')) as server:
        url = f"http://{server.host}:{server.port}"
        words = ["--bundle", str(notebook), "--url", url, "--html", str(tmp_path / "x.html")]
        with pytest.raises(SystemExit, match="the first answer is not right: wrong"):
            command.load(words)


REFUSALS: tuple[tuple[int, bytes, str], ...] = (  # an answer, and what is said of it
    (
        400,
        b'{"error": {"message": "model is missing; served: a, b"}}',
        "400: model is missing; ser",
    ),
    (503, b"<p>of a\nproxy", "503: <p>of a proxy"),
    (404, b'{"error": 7}', '404: {"error": 7}'),
    (200, b'{"pooled": [[1.0]]}', "the answers are not those of notebook/1"),
)


@pytest.mark.parametrize("html", [True, False])
def test_a_server_that_gives_no_right_answer_is_quoted(
    notebook: Path, tmp_path: Path, html: bool
) -> None:
    """And the option that is often the cause is named."""
    one_load = ["--seconds", "0.01", "--warm-up", "0"]
    kind = ["--html", str(tmp_path / "x.html")] if html else one_load
    given = dict[str, tuple[int, bytes]]()
    with fake_server(lambda _: given["answer"]) as server:
        url = f"http://{server.host}:{server.port}"
        for status, content, said in REFUSALS:
            given["answer"] = (status, content)
            with pytest.raises(SystemExit) as ended:
                command.load(["--bundle", str(notebook), "--url", url, *kind])
            assert said in str(ended.value)
            assert "--model" in str(ended.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--bundle", "no/where/1"], "bundle no/where/1: there is no such folder"),
        (["--html", "/nope/dir/x.html"], "--html /nope/dir/x.html cannot be written: No such file"),
        (["--json", "/nope/dir/x.json"], "--json /nope/dir/x.json cannot be written: No such file"),
        (["--html", "/"], "--html / cannot be written: Is a directory"),
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
    shown = " ".join(capsys.readouterr().out.split())
    example = shown.partition("Example: ")[2]
    assert example.startswith("addnorm load --bundle bundles/all-minilm-l6-v2/1 --model all-")
    assert (
        "bundles/all-minilm-l6-v2/1 --model all-minilm-l6-v2"
        in Path("docs/performance.md").read_text()
    )


def test_figures_do_not_break_and_cut_tables_show_it(page: str) -> None:
    """The page's style is read: how it looks is seen in a browser."""
    assert re.search(r"\.highlights dt {[^}]*white-space: nowrap", page)
    assert re.search(r"max-width: 30rem\) { \.highlights { grid-template-columns: 1fr;", page)
    assert re.search(r"\.scroll {[^}]*no-repeat local", page)
