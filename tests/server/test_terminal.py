"""`addnorm serve` on a terminal: three lines, and text; JSON where a program reads it."""

import logging
import os
import pty
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from addnorm.service.engine.registry import Models
from addnorm.service.server.process import greeting
from addnorm.service.wire.telemetry.logs import TextFormatter
from tests.conftest import service_of
from tests.support.waiting import PATIENCE_S


def on_a_terminal(*words: str) -> list[str]:
    """Lines of a server that is ended once it listens."""
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "addnorm", "serve", "--port", "0", *words]
    server = subprocess.Popen(command, stdout=end, stderr=end)
    os.close(end)
    output = b""
    try:
        while select.select([terminal], [], [], PATIENCE_S)[0]:
            output += os.read(terminal, 65536)
            if b"with a page" in output or b"Uvicorn running" in output:
                break
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(PATIENCE_S)
        os.close(terminal)
    return output.decode().splitlines()


def test_a_terminal_is_told_what_is_served_and_where(small: Path) -> None:
    served, where, page = on_a_terminal("--bundles", str(small))
    assert served.startswith("serving ")
    assert "notebook (complete, fp32)" in served
    assert where.startswith("at http://127.0.0.1:")
    assert page.startswith("with a page to try it, http://127.0.0.1:")


def test_a_terminal_may_get_the_log_of_programs(small: Path) -> None:
    lines = on_a_terminal(str(small / "notebook"), "--log-format", "json")
    assert len(lines) > 3
    assert all(line.startswith("{") for line in lines)


def test_the_address_is_one_that_a_browser_opens(few: Models, tmp_path: Path) -> None:
    service = service_of(few)
    for host, url in (("0.0.0.0", "http://localhost:"), ("127.0.0.1", "http://127.0.0.1:")):
        with socket.create_server((host, 0)) as listener:
            page = greeting(service, [listener]).splitlines()[2]
            assert page == f"with a page to try it, {url}{listener.getsockname()[1]}/"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        assert greeting(service, [listener]).splitlines()[1] == f"at the socket {tmp_path / 's'}"


def record(message: str, level: int = logging.INFO, **fields: object) -> logging.LogRecord:
    line = logging.LogRecord("addnorm", level, "", 0, message, None, None)
    vars(line).update(fields)
    return line


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (record("ready"), "ready"),
        (record("full", logging.ERROR), "error: full"),
        (
            record("request", method="POST", route="/embed", status=200, ms=3.21),
            "POST /embed 200 in 3.2 ms",
        ),
        (record("a\x1b[2Jb\nc"), r"a\x1b[2Jb\nc"),
    ],
)
def test_text_is_a_line_that_moves_no_cursor(line: logging.LogRecord, shown: str) -> None:
    assert TextFormatter().format(line)[9:] == shown
