"""Servers as processes, for the examples beside this file. Needs the standard library alone."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

START_S = 120.0  # a server that needs longer is taken for dead


@contextmanager
def served(bundles: Path) -> Iterator[str]:
    """`addnorm serve` on a free port, every answer computed anew; yields the base URL."""
    port = free_port()
    # -P: the working folder is not searched for modules
    command = [sys.executable, "-P", "-m", "addnorm", "serve", "--bundles", str(bundles)]
    own = {"ADDNORM_PORT": str(port), "ADDNORM_LOG_LEVEL": "warning", "ADDNORM_CACHE_BYTES": "0"}
    with running(command, port, **own) as url:
        yield url


@contextmanager
def running(command: Sequence[str], port: int, **settings: str) -> Iterator[str]:
    """A server as its own process, from when it listens until the block is left; yields its URL."""
    process = subprocess.Popen(command, env={**os.environ, **settings})
    try:
        _await_listening(process, port)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def _await_listening(process: "subprocess.Popen[bytes]", port: int) -> None:
    """None of these servers listens before its models are loaded."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    sys.exit(f"{process.args!r} did not listen within {START_S:.0f} s")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
