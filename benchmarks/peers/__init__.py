"""Servers and programs of others, which Addnorm is measured beside. Kept as most people would write
them, on purpose: do not make them quicker or slower."""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from addnorm.load.servers import Server
from addnorm.service.engine.bundle import Bundle
from benchmarks import processes
from benchmarks.findings import BUILD

MODULE = (sys.executable, "-m")
INFINITY = BUILD / "infinity/bin/infinity_emb"
INFINITY_OPTIONS = (
    *("--engine", "torch", "--device", "cpu", "--host", "127.0.0.1", "--url-prefix", "/v1"),
    *("--no-model-warmup", "--log-level", "warning"),  # the first requests warm it up
)
INFINITY_QUIET = {"DO_NOT_TRACK": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0"}


JAVASCRIPT = Path(__file__).with_name("javascript")


def program(name: str) -> str:
    """The file of a program here, for the interpreter of another environment."""
    return str(Path(__file__).with_name(f"{name}.py"))


def naive(padded: Bundle, *flags: str) -> AbstractContextManager[Server]:
    """padded: a bundle of layout padded. flags: one-thread, typed."""
    return processes.program((*MODULE, "benchmarks.peers.naive", padded.path, *flags))


def pytorch(folder: str, device: str = "cpu") -> AbstractContextManager[Server]:
    """folder: of transformers. device: cpu or cuda."""
    return processes.program((*MODULE, "benchmarks.peers.torch_server", folder, device))


@contextmanager
def ready_made(answer: bytes) -> Iterator[Server]:
    """It returns `answer` to every request."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "answer.json")
        file.write_bytes(answer)
        command = [*MODULE, "benchmarks.peers.ready_made", file]
        with processes.program(command) as server:
            yield server


def infinity(checkpoint: Path, name: str) -> AbstractContextManager[Server]:
    """Infinity over this checkpoint, its routes under /v1."""
    model = ("--model-id", checkpoint, "--served-model-name", name)
    command = (INFINITY, "v2", *model, *INFINITY_OPTIONS, "--port")
    return processes.program(command, **INFINITY_QUIET)
