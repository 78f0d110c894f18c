"""Logs as JSON, one object a line on stderr, or as text on a terminal. A log that nobody reads
costs lines, nothing else."""

import logging
import os
import select
import sys
import threading
import time
from collections.abc import Iterator
from logging.handlers import MemoryHandler, QueueHandler, QueueListener
from queue import Full, Queue
from typing import Any

from pythonjsonlogger.core import RESERVED_ATTRS, LogData
from pythonjsonlogger.orjson import OrjsonFormatter

FIELDS = {"asctime": "time", "levelname": "level", "name": "logger", "message": "message"}
NOT_SHOWN = [*RESERVED_ATTRS, "color_message"]  # uvicorn's messages again, with terminal colours
MAX_BUFFERED = 100  # records; formatting them takes about 1 ms
# Lines that wait for a reader, of about 500 bytes. Larger: more memory while the reader is away.
# Smaller: a shorter absence costs lines; a busy server writes 2,000 a second.
MAX_WAITING = 16_384
LOST = "%d lines of the log were lost: nobody read them, or they could not be written"
FINISH_S = 0.5  # longest wait for a reader that takes nothing, at the end of the process


class JsonFormatter(OrjsonFormatter):
    """time, level, logger, message; then the caller's `extra`, and an exception's traceback."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03d+00:00"

    def __init__(self) -> None:
        super().__init__(
            list(FIELDS),
            rename_fields={**FIELDS, "exc_info": "exception"},
            reserved_attrs=NOT_SHOWN,
            json_default=str,
        )

    def process_log_record(self, log_data: LogData) -> LogData:
        log_data["level"] = log_data["level"].lower()
        return log_data


class TextFormatter(logging.Formatter):
    """The time, a level above info, and the message; of a request its route, status and time. No
    character of a caller's can move the terminal's cursor."""

    def format(self, record: logging.LogRecord) -> str:
        fields, lines = vars(record), [record.getMessage()]
        if "route" in fields:
            lines = ["{method} {route} {status} in {ms:.1f} ms".format(**fields)]
        if record.exc_info:
            lines += self.formatException(record.exc_info).splitlines()
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        shown = (line if line.isprintable() else ascii(line)[1:-1] for line in lines)
        return f"{self.formatTime(record, '%H:%M:%S')} {level}{os.linesep.join(shown)}"


class Queued(QueueHandler):
    """Puts lines before the thread that writes them, and never waits: without space they are lost.

    A line is made at once, as errors let go of what an exception holds once they are logged.
    """

    num_dropped = 0

    def prepare(self, record: logging.LogRecord) -> bytes:
        return self.format(record).encode() + b"\n"

    def enqueue(self, record: Any) -> None:
        try:
            super().enqueue(record)
        except Full:
            self.num_dropped += 1


class Writer(QueueListener):
    """Writes lines on a thread of its own: only that one waits for the reader."""

    queue: Queue[bytes]

    def __init__(self, descriptor: int, handler: Queued) -> None:
        super().__init__(handler.queue)
        self._descriptor, self._handler = descriptor, handler
        self._lines: list[bytes] = []  # lines that are written together
        self._num_failed = self._num_told = 0  # lines, of those that were lost

    @property
    def num_lost(self) -> int:
        return self._num_failed + self._handler.num_dropped

    def handle(self, record: Any) -> None:
        self._lines.append(record)
        if len(self._lines) < MAX_BUFFERED and not self.queue.empty():
            return
        lines, self._lines = self._lines, []
        try:
            self._write(b"".join(lines))
            if num_untold := self.num_lost - self._num_told:
                self._num_told += num_untold
                notice = logging.LogRecord(
                    "addnorm", logging.WARNING, "", 0, LOST, (num_untold,), None
                )
                self._write(self._handler.prepare(notice))
        except OSError:  # the pipe is closed, the disk full
            self._num_failed += len(lines)

    def _write(self, text: bytes) -> None:
        remaining = memoryview(text)
        while remaining:
            try:
                remaining = remaining[os.write(self._descriptor, remaining) :]
            except BlockingIOError:  # who started the process has made the descriptor so
                select.select([], [self._descriptor], [])

    def finish(self) -> bool:
        """Waits until all is written, or the reader has taken nothing for FINISH_S."""
        done, num_remaining = self.queue.all_tasks_done, self.queue.unfinished_tasks + 1
        with done:
            while 0 < self.queue.unfinished_tasks < num_remaining:
                num_remaining = self.queue.unfinished_tasks
                done.wait_for(lambda: not self.queue.unfinished_tasks, FINISH_S)
            return not self.queue.unfinished_tasks


class LineHandler(MemoryHandler):
    """Holds records, and makes lines of them from a warning on, when MAX_BUFFERED are held, when
    flushed, and at exit."""

    def __init__(
        self, descriptor: int, max_waiting: int = MAX_WAITING, is_text: bool = False
    ) -> None:
        """max_waiting: lines."""
        queued = Queued(Queue[bytes](max_waiting))
        queued.setFormatter(TextFormatter() if is_text else JsonFormatter())
        super().__init__(MAX_BUFFERED, logging.WARNING, queued)
        self.writer = Writer(descriptor, queued)
        self.writer.start()

    def close(self) -> None:
        is_open = self.target is not None
        super().close()
        if is_open and self.writer.finish():
            self.writer.stop()


def is_text(form: str) -> bool:
    """form: json, text, or auto: text on a terminal."""
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    return form == "text" or (form != "json" and is_terminal)


def configure(level: str, form: str = "auto") -> None:
    """Sets up all loggers of the process, uvicorn's too. form: as in `is_text`."""
    # None if it was closed when the process began
    descriptor = sys.stderr.fileno() if sys.stderr else os.open(os.devnull, os.O_WRONLY)
    logging.raiseExceptions = False  # a record that cannot be shown costs its line only
    # no line shows these, and gathering them costs time (logging's "Optimization")
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = LineHandler(descriptor, is_text=is_text(form))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Python writes these to stderr by itself, not as JSON
    logging.captureWarnings(True)
    threading.excepthook = _log_thread_end


def _log_thread_end(ended: threading.ExceptHookArgs) -> None:
    name = ended.thread.name if ended.thread else "unknown"
    exc_info = (ended.exc_type, ended.exc_value or ended.exc_type(), ended.exc_traceback)
    logging.getLogger("addnorm").error("the thread %s has ended", name, exc_info=exc_info)


def flush() -> None:
    """Hands what is held to the thread that writes it."""
    for handler in _handlers():
        handler.flush()


def finish() -> None:
    """Writes what is held, as far as somebody reads it."""
    for handler in _handlers():
        handler.flush()
        handler.writer.finish()


def num_lost() -> int:
    """Lines that could not be written so far."""
    return sum(handler.writer.num_lost for handler in _handlers())


def _handlers() -> Iterator[LineHandler]:
    handlers = list(logging.getLogger().handlers)
    return (handler for handler in handlers if isinstance(handler, LineHandler))
