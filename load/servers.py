"""Servers as processes: started on a free port, awaited, read through /proc, stopped."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from prometheus_client.parser import text_string_to_metric_families

from addnorm.service.runtime.bundle import Bundle

LOOPBACK = "127.0.0.1"
START_S = 120.0  # a server that needs longer is taken for dead
METRICS_S = 5.0  # a server that needs longer has none for us
ANSWER_S = 300.0  # a server that needs longer has lost the request
# series of a model appear with its first sequence
CACHE_COUNTS = (
    "addnorm_cache_hits_total",
    "addnorm_cache_misses_total",
    "addnorm_merged_sequences_total",
)
MODULE = (sys.executable, "-m")
INFINITY_OPTIONS = (
    *("--engine", "torch", "--device", "cpu", "--host", "127.0.0.1", "--url-prefix", "/v1"),
    *("--no-model-warmup", "--log-level", "warning"),  # the first requests warm it up
)
INFINITY_QUIET = {"DO_NOT_TRACK": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0"}


@dataclass(frozen=True)
class CacheCounts:
    """Sequences of all models: held; not held; of the latter, merged with an equal one."""

    hits: int = 0
    misses: int = 0
    merged: int = 0

    @classmethod
    def of_metrics(cls, text: str) -> "CacheCounts | None":
        """Of Prometheus' text. None if no series in it is Addnorm's."""
        values: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                values[sample.name] = values.get(sample.name, 0.0) + sample.value
        if not any(name.startswith("addnorm_") for name in values):
            return None
        return cls(*(int(values.get(name, 0)) for name in CACHE_COUNTS))

    def since(self, before: "CacheCounts") -> "CacheCounts":
        return CacheCounts(
            self.hits - before.hits, self.misses - before.misses, self.merged - before.merged
        )


@dataclass(frozen=True)
class Server:
    """Where a server listens, and its process where we know it."""

    host: str
    port: int
    pid: int | None = None
    headers: tuple[str, ...] = ()  # sent with every request

    def ask(self, body: bytes, path: str = "/v1/infer", headers: Sequence[str] = ()) -> bytes:
        """The answer to one body. HTTPError unless it is a success."""
        request = self._request(path, body, "Content-Type: application/json", *headers)
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            return bytes(answer.read())

    def get(self, path: str) -> bytes:
        """HTTPError unless it is a success."""
        with urllib.request.urlopen(self._request(path, None), timeout=METRICS_S) as answer:
            return bytes(answer.read())

    def _request(self, path: str, body: bytes | None, *headers: str) -> urllib.request.Request:
        own = dict(header.split(": ", 1) for header in (*self.headers, *headers))
        return urllib.request.Request(f"http://{self.host}:{self.port}{path}", body, own)

    def cpu_s(self) -> float | None:
        """CPU seconds of the process so far, user and system."""
        if self.pid is None:
            return None
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf(
            "SC_CLK_TCK"
        )  # utime, stime: proc(5)

    def rss_mib(self) -> float | None:
        """Resident memory of the process, MiB. A page that is mapped twice counts once (Pss)."""
        if self.pid is None:
            return None
        text = Path(f"/proc/{self.pid}/smaps_rollup").read_text()
        sizes = dict(line.split(":") for line in text.splitlines()[1:])
        return int(sizes["Pss"].split()[0]) / 1024

    def anonymous_mib(self) -> float | None:
        """Memory of the process that no file backs, MiB. Unlike `rss_mib` it does not change with
        the processes that come and go, and had shared a library's pages."""
        if self.pid is None:
            return None
        text = Path(f"/proc/{self.pid}/smaps_rollup").read_text()
        sizes = dict(line.split(":") for line in text.splitlines()[1:])
        return int(sizes["Anonymous"].split()[0]) / 1024

    def cache_counts(self) -> CacheCounts | None:
        """Since its start. None if it has no metrics that we may read, or is not Addnorm."""
        try:
            return CacheCounts.of_metrics(self.get("/metrics").decode())
        except (OSError, ValueError, HTTPException):  # of other servers, or for lack of a key
            return None


@contextmanager
def addnorm(bundle: Bundle, **settings: str) -> Iterator[Server]:
    """`addnorm serve` over this one bundle, with default settings but these. See `folder`."""
    with serving([bundle], **settings) as server:
        yield server


@contextmanager
def serving(
    bundles: Sequence[Bundle], worktree: Path | None = None, /, **settings: str
) -> Iterator[Server]:
    """`addnorm serve` over these bundles, which have different names."""
    with TemporaryDirectory() as root:
        for bundle in bundles:
            name, version = bundle.ref.split("/")
            Path(root, name).mkdir()
            Path(root, name, version).symlink_to(bundle.path.resolve())
        with folder(Path(root), worktree, **settings) as server:
            yield server


@contextmanager
def folder(
    bundles: Path, worktree: Path | None = None, log: IO[bytes] | None = None, /, **settings: str
) -> Iterator[Server]:
    """`addnorm serve` over this folder, with these settings.

    Nothing is cached unless ADDNORM_CACHE_BYTES is among them: streams repeat their sequences.
    worktree: the folder whose code serves, if it is not this one's. log: takes stderr.
    ADDNORM_HOST, ADDNORM_PORT among the settings: where to listen, if not on a free port.
    """
    host, port = settings.get("ADDNORM_HOST", LOOPBACK), int(settings.get("ADDNORM_PORT", 0))
    port = port or free_port()
    own = {"ADDNORM_PORT": str(port), "ADDNORM_LOG_LEVEL": "warning", "ADDNORM_CACHE_BYTES": "0"}
    own["ADDNORM_TRUST_TOKEN_IDS"] = "true"  # loads draw ids by chance
    command = [*MODULE, "addnorm", "serve", "--bundles", str(bundles.resolve())]
    with _process(command, port, {**own, **settings}, worktree, log, host) as server:
        yield server


@contextmanager
def naive(bundle: Bundle, *flags: str) -> Iterator[Server]:
    port = free_port()
    arguments = ["--bundle", str(bundle.path), "--port", str(port), *flags]
    with _process([*MODULE, "addnorm.load.bench.naive", *arguments], port) as server:
        yield server


@contextmanager
def ready_made(answer: bytes) -> Iterator[Server]:
    """load/ready.py, returning `answer` to every request."""
    port = free_port()
    with TemporaryDirectory() as folder:
        file = Path(folder, "answer.json")
        file.write_bytes(answer)
        arguments = ["--answer", str(file), "--port", str(port)]
        with _process([*MODULE, "addnorm.load.bench.ready", *arguments], port) as server:
            yield server


@contextmanager
def program(command: Sequence[str], **settings: str) -> Iterator[Server]:
    """A server of others: `command --port PORT`, on this host."""
    port = free_port()
    with _process([*command, "--port", str(port)], port, settings) as server:
        yield server


def infinity(command: Path, checkpoint: Path, name: str) -> AbstractContextManager[Server]:
    """Infinity over this checkpoint, its routes under /v1. command: infinity_emb."""
    model = ("--model-id", str(checkpoint), "--served-model-name", name)
    return program((str(command), "v2", *model, *INFINITY_OPTIONS), **INFINITY_QUIET)


def end_on_sigterm() -> None:
    """SIGTERM leaves all blocks, so that no server outlives this process."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))


@contextmanager
def _process(
    command: Sequence[str],
    port: int,
    settings: dict[str, str] | None = None,
    cwd: Path | None = None,
    stderr: IO[bytes] | None = None,
    host: str = LOOPBACK,
) -> Iterator[Server]:
    """The command's process, from when it answers HTTP until the block is left."""
    environment = {**os.environ, **(settings or {})}
    process = subprocess.Popen(command, env=environment, cwd=cwd, stderr=stderr)
    try:
        _await(process, host, port)
        yield Server(host, port, process.pid)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await(process: subprocess.Popen[bytes], host: str, port: int) -> None:
    """Any answer will do: none of these servers listens before its models are loaded."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(
                f"{process.args!r} ended with {process.returncode} before it answered"
            )
        try:
            urllib.request.urlopen(f"http://{host}:{port}/livez", timeout=5).close()
        except urllib.error.HTTPError as error:
            error.close()
            return
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError(f"{process.args!r} did not answer within {START_S:.0f} s")


def free_port() -> int:
    """One that the system hands out to nobody else for a minute: a connection on it has just ended.
    Who sets SO_REUSEADDR, as servers do, may listen on it at once."""
    with socket.socket() as listener, socket.socket() as caller:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, 0))
        listener.listen()
        caller.connect(listener.getsockname())
        ended, _ = listener.accept()
        ended.close()  # first, so that it is this side of the connection that waits
        return int(listener.getsockname()[1])
