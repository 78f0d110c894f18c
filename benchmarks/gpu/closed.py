"""What the server does without a GPU, and without memory on it: it must say so in words, and go on
where it was serving."""

import json
import subprocess
import sys
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Any

import numpy as np

from addnorm.load.measure.stream import Request
from addnorm.load.servers import Server
from addnorm.service.runtime.bundle import Bundle
from benchmarks import processes
from benchmarks.gpu import shapes
from benchmarks.gpu.setup import Setup

HOLDERS = {  # of memory: a line when they hold it, and the end with their input
    "cuda": "import torch; free, _ = torch.cuda.mem_get_info(); held = torch.empty(max(1, free -"
    " 2**26), dtype=torch.uint8, device='cuda')",
    "cpu": "held = bytearray(2**26)",
}
HOLD = "{}; print('held', flush=True); input()"
TIMES_WEIGHTS = (4.0, 2.0, 1.5, 1.2, 0.5)  # arena limits that are tried
Figures = dict[str, Any]
HIDDEN = "hidden GPU"
LARGE, SMALL = (32, 512), (1, 8)  # sequences of so many tokens


def closed(setup: Setup) -> None:
    """RuntimeError names what was not said in words, or ended a server that was serving."""
    shape = setup.shapes[-1]  # the largest
    found = dict[str, Figures]()
    for case, figures in _cases(setup, shapes.bundle(setup, shape)):
        setup.report.put("closed", f"{shape}, {case}", figures)
        found[case] = figures
    wrong = [f"{case}: {words}" for case, figures in found.items() for words in _wrong(figures)]
    if "started" in found[HIDDEN]:
        wrong.append(f"{HIDDEN}: the server started")
    if setup.provider == "cuda" and not any(map(_was_short, found.values())):
        wrong.append("no case was short of memory")
    if wrong:
        raise RuntimeError("; ".join(wrong))


def _cases(setup: Setup, bundle: Bundle) -> Iterator[tuple[str, Figures]]:
    yield HIDDEN, _started(bundle, ADDNORM_PROVIDER="cuda", CUDA_VISIBLE_DEVICES="")
    weights = sum(bundle.graph(name).stat().st_size for name in shapes.PRECISIONS)
    weights += sum(file.stat().st_size for file in bundle.path.glob("*.data"))
    own = {"ADDNORM_PROVIDER": setup.provider}
    for times in TIMES_WEIGHTS:
        limit = {"ADDNORM_CUDA_MEMORY_BYTES": str(int(times * weights))}
        yield f"arena of {times:g} x the weights", _started(bundle, **own, **limit)
    with _memory_held(setup.provider):
        yield "memory held before the start", _started(bundle, **own)
    with TemporaryFile() as log, _serving(bundle, log, **own) as server:
        with _memory_held(setup.provider):
            meanwhile = _asked(server, bundle)
        yield "memory held while serving", {**meanwhile, "traceback": _log_of(log)["traceback"]}
        yield "memory given back", _asked(server, bundle)


def _was_short(figures: Figures) -> bool:
    return figures.get("large request") != "200"


def _wrong(figures: Figures) -> Iterator[str]:
    """Anything but a refusal in words, or answers that end with a good one to a small request."""
    if figures.get("traceback"):
        yield "its log has a traceback"
    if "refused" in figures and not figures["refused"]:
        yield "it ended without a word"
    small = figures.get("small request", "200")
    if not small.startswith("200"):
        yield f"it did not go on: {small}"
    if figures.get("large request", "") == "lost":
        yield "the large request got no answer"


@contextmanager
def _memory_held(provider: str) -> Iterator[None]:
    command = [sys.executable, "-c", HOLD.format(HOLDERS[provider])]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as holder:  # type: ignore[call-overload]
        assert holder.stdout.readline().strip() == "held"
        yield
        holder.stdin.write("\n")


def _started(bundle: Bundle, **settings: str) -> Figures:
    """Starts a server and asks it: its answers, or why it refused to start."""
    with TemporaryFile() as log:
        try:
            with _serving(bundle, log, **settings) as server:
                answers = _asked(server, bundle)
            return {"started": True, **answers, "traceback": _log_of(log)["traceback"]}
        except RuntimeError:  # it ended before it answered
            said = _log_of(log)
            return {"refused": said["last line"], "traceback": said["traceback"]}


@contextmanager
def _serving(bundle: Bundle, log: IO[bytes], **settings: str) -> Iterator[Server]:
    """The bundle alone."""
    with TemporaryDirectory() as root:
        Path(root, bundle.manifest.name).symlink_to(bundle.path.parent.resolve())
        with processes.folder(Path(root), None, log, **settings) as server:
            yield server


def _log_of(log: IO[bytes]) -> dict[str, Any]:
    log.seek(0)
    text = log.read().decode()
    lines = [line for line in text.splitlines() if line.strip()] or [""]
    return {"last line": lines[-1][:500], "traceback": "Traceback" in text}


def _asked(server: Server, bundle: Bundle) -> dict[str, str]:
    """A large request, then a small one: status and what an error says."""
    return {
        "large request": _answer(server, bundle, *LARGE),
        "small request": _answer(server, bundle, *SMALL),
    }


def _answer(server: Server, bundle: Bundle, num: int, length: int) -> str:
    limits, name = bundle.manifest.limits, bundle.manifest.name
    shape = (num, min(length, limits.max_positions))
    drawn = np.random.default_rng(0).integers(0, limits.vocab_size, shape)
    body = Request.of(tuple(drawn), "pooled", {"model": name}).body
    try:
        server.ask(body)
    except urllib.error.HTTPError as error:
        return f"{error.code}: {json.loads(error.read())['error']['message']}"
    except (OSError, ValueError):
        return "lost"
    return "200"
