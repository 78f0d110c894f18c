"""Logs as JSON, one object a line on stderr."""

import io
import logging
import sys
import threading
from contextlib import suppress
from datetime import UTC, datetime
from typing import TextIO

import orjson


class JsonFormatter(logging.Formatter):
    """time, level, logger, message; then a record's `context`, and the traceback of an exception."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "context", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


class BufferedHandler(logging.Handler):
    """Collects lines and writes them together: a write for each hands the interpreter's lock away each time.

    Flushed by the server ten times a second, at once from a warning on, and at exit.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.stream, self.lines = stream, list[str]()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record) + "\n")
        if record.levelno >= logging.WARNING:
            self.flush()

    def flush(self) -> None:
        self.acquire()
        lines, self.lines = self.lines, []
        self.release()
        with suppress(
            OSError
        ):  # the disk is full, or the reader gone: that must cost log lines and nothing else
            self.stream.write("".join(lines))


def configure(level: str) -> None:
    """All loggers of the process, uvicorn's too."""
    # unbuffered: what could not be written must not wait in the stream and fail again, even at exit
    stderr = io.TextIOWrapper(
        io.FileIO(sys.stderr.fileno(), "w", closefd=False), "utf-8", write_through=True
    )
    handler = BufferedHandler(stderr)
    handler.setFormatter(JsonFormatter())
    # what no line shows is not gathered (logging's "Optimization"): the caller's place alone costs a walk up the stack
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # what Python would write beside them
    logging.captureWarnings(True)
    threading.excepthook = _log_thread_end


def _log_thread_end(ended: threading.ExceptHookArgs) -> None:
    name = ended.thread.name if ended.thread else "unknown"
    known = (ended.exc_type, ended.exc_value or ended.exc_type(), ended.exc_traceback)
    logging.getLogger("addnorm").error("the thread %s has ended", name, exc_info=known)


def flush() -> None:
    for handler in logging.getLogger().handlers:
        handler.flush()
