"""Servers as processes: started on a free port, awaited, stopped."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from addnorm.load.servers import Server
from addnorm.service.engine.bundle import Bundle

LOOPBACK = "127.0.0.1"
START_S = 120.0  # a server that needs longer is taken for dead


def ask_directly() -> None:
    """No client of this process or its children sends requests for this machine to a proxy."""
    for name in ("NO_PROXY", "no_proxy"):  # some read one, some the other first
        os.environ[name] = ",".join(filter(None, (os.environ.get(name), "localhost", LOOPBACK)))


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
    bundles: Path,
    worktree: Path | None = None,
    log: IO[bytes] | None = None,
    python: Sequence[str] = (sys.executable,),
    start_s: float = START_S,
    /,
    **settings: str,
) -> Iterator[Server]:
    """`addnorm serve` over this folder, with these settings.

    Nothing is cached unless ADDNORM_CACHE_BYTES is among them: streams repeat their sequences.
    worktree: the folder whose code serves, if it is not this one's. log: takes stderr. python: the
    command that runs it.
    """
    port = free_port()
    defaults = {
        "ADDNORM_PORT": str(port),
        "ADDNORM_LOG_LEVEL": "warning",
        "ADDNORM_CACHE_BYTES": "0",
    }
    defaults["ADDNORM_TRUST_TOKEN_IDS"] = "true"  # loads draw ids by chance
    command = [*python, "-m", "addnorm", "serve", "--bundles", str(bundles.resolve())]
    with _process(command, port, {**defaults, **settings}, worktree, log, start_s) as server:
        yield server


@contextmanager
def program(
    command: Sequence[object], start_s: float = START_S, /, **settings: str
) -> Iterator[Server]:
    """A server of others, on this host: the command with its port as the last word."""
    port = free_port()
    words = [str(word) for word in command]
    with _process([*words, str(port)], port, settings, start_s=start_s) as server:
        yield server


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
    start_s: float = START_S,
) -> Iterator[Server]:
    """The command's process, from when it answers HTTP until the block is left."""
    environment = {**os.environ, **(settings or {})}
    process = subprocess.Popen(command, env=environment, cwd=cwd, stderr=stderr)
    try:
        _await(process, port, start_s)
        yield Server(LOOPBACK, port, process.pid)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await(process: subprocess.Popen[bytes], port: int, start_s: float) -> None:
    """Any answer will do: none of these servers listens before its models are loaded."""
    deadline = time.monotonic() + start_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(
                f"{process.args!r} ended with {process.returncode} before it answered"
            )
        try:
            urllib.request.urlopen(f"http://{LOOPBACK}:{port}/livez", timeout=5).close()
        except urllib.error.HTTPError as error:
            error.close()
            return
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError(f"{process.args!r} did not answer within {start_s:.0f} s")


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
