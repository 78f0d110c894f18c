"""The log: whole lines of JSON, whoever reads them, and nobody who waits for its reader."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import httpx
import pytest

from addnorm.service.engine.registry import Models
from addnorm.service.wire.telemetry import logs
from addnorm.service.wire.telemetry.exposition import State
from benchmarks.processes import free_port
from tests.support import web
from tests.support.waiting import PATIENCE_S, eventually

MAX_WAITING = 100
SHORT = {"model": "notebook", "input_ids": [[1, 3, 4, 5, 2]], "outputs": ["pooled"]}


class Pipe:
    """A logger that writes to a pipe."""

    def __init__(self) -> None:
        reader, self.writer = os.pipe()
        self.reader: BinaryIO = os.fdopen(reader, "rb")
        self.logger = logging.Logger("of the test")
        self.handler = logs.LineHandler(self.writer, MAX_WAITING)
        self.logger.addHandler(self.handler)

    def line(self) -> dict[str, Any]:
        """The next one. Waits for it."""
        return json.loads(self.reader.readline())  # type: ignore[no-any-return]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.reader.close()
    pipe.handler.close()
    os.close(pipe.writer)


LOUD = """
import sys, threading, warnings
from addnorm.service.wire.telemetry import logs
logs.configure("info")
warnings.warn("of a library", RuntimeWarning)
import numpy
numpy.float32([7e4]).astype(numpy.float16)
thread = threading.Thread(target=lambda: 1 / 0, name="worker")
thread.start()
thread.join()
logs.flush()
"""


def test_warnings_and_threads_that_end_break_no_line_of_the_log() -> None:
    loud = subprocess.run([sys.executable, "-c", LOUD], capture_output=True, text=True, timeout=60)
    lines = [json.loads(line) for line in loud.stderr.splitlines()]
    assert [line["level"] for line in lines] == ["warning", "warning", "error"]
    assert "of a library" in lines[0]["message"]
    assert "overflow encountered in cast" in lines[1]["message"]
    assert lines[2]["message"] == "the thread worker has ended"
    assert "ZeroDivisionError" in lines[2]["exception"]


def test_log_lines_are_written_together_once_flushed(pipe: Pipe) -> None:
    pipe.logger.info("one", extra={"ms": 1.5})
    pipe.logger.info("two")
    assert len(pipe.handler.buffer) == 2
    pipe.handler.flush()
    lines = [pipe.line(), pipe.line()]
    assert [list(line) for line in lines] == [
        ["time", "level", "logger", "message", "ms"],
        ["time", "level", "logger", "message"],
    ]
    assert [line["message"] for line in lines] == ["one", "two"]
    assert datetime.fromisoformat(lines[0]["time"]).tzinfo == UTC
    pipe.logger.warning("three")
    assert pipe.line()["level"] == "warning"


def test_a_reader_that_stops_costs_log_lines_which_are_counted_and_told(pipe: Pipe) -> None:
    pipe.logger.warning("x" * 2**20)  # more than the pipe holds
    assert eventually(pipe.handler.writer.queue.empty)
    for number in range(MAX_WAITING + 3):
        pipe.logger.warning("%d", number)  # nothing waits, though nobody reads
    assert pipe.handler.writer.num_lost == 3
    assert pipe.line()["message"].startswith("xxx")
    assert pipe.line()["message"].startswith("3 lines of the log were lost")
    assert [pipe.line()["message"] for _ in range(MAX_WAITING)] == [
        str(number) for number in range(MAX_WAITING)
    ]
    pipe.logger.warning("after it")
    assert pipe.line()["message"] == "after it"
    assert pipe.handler.writer.num_lost == 3


def test_a_reader_that_is_slow_at_the_end_gets_all_log_lines(pipe: Pipe) -> None:
    for _ in range(40):
        pipe.logger.info("x" * 10_000)  # more than a pipe holds
    ending = threading.Thread(target=pipe.handler.close)
    ending.start()
    assert [pipe.line()["level"] for _ in range(40)] == ["info"] * 40
    ending.join()


def test_a_descriptor_that_does_not_wait_costs_no_line(pipe: Pipe) -> None:
    os.set_blocking(pipe.writer, False)  # as a parent process may have it
    for _ in range(40):
        pipe.logger.warning("x" * 10_000)
    assert [pipe.line()["level"] for _ in range(40)] == ["warning"] * 40
    assert pipe.handler.writer.num_lost == 0


def test_a_record_that_cannot_be_shown_costs_its_line_only(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)  # as `configure` does
    pipe.logger.info("%d", "no number")
    pipe.logger.warning("two")
    assert pipe.line()["message"] == "two"


def test_log_lines_for_a_closed_pipe_are_counted(pipe: Pipe) -> None:
    pipe.reader.close()
    pipe.logger.warning("one")
    assert eventually(lambda: pipe.handler.writer.num_lost == 1)


def test_the_metric_counts_the_log_lines_of_the_process(pipe: Pipe) -> None:
    logging.getLogger().addHandler(pipe.handler)
    try:
        pipe.reader.close()
        pipe.logger.warning("one")
        assert eventually(lambda: logs.num_lost() == 1)
        *_, metric = State(Models([]), "cpu").collect()
    finally:
        logging.getLogger().removeHandler(pipe.handler)
    (sample,) = metric.samples
    assert (sample.name, sample.value) == ("addnorm_log_lines_lost_total", 1)


def test_a_full_disk_under_the_log_costs_log_lines_only(notebook: Path) -> None:
    port = free_port()
    with Path("/dev/full").open("w") as full:
        process = subprocess.Popen(
            [sys.executable, "-m", "addnorm", "serve", "--bundles", str(notebook.parents[1])],
            env={**os.environ, "ADDNORM_PORT": str(port)},
            stderr=full,
        )
    try:
        with web.client(
            transport=httpx.HTTPTransport(retries=8), base_url=f"http://127.0.0.1:{port}"
        ) as client:
            for _ in range(3):
                assert client.post("/v1/infer", json=SHORT).status_code == 200
                time.sleep(0.15)  # past a flush
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
