"""Logs as JSON, one object a line on stderr."""

import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

import orjson


class JsonFormatter(logging.Formatter):
    """time, level, logger, message; then a record's `facts`, and the traceback of an exception."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
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
        if lines:
            self.stream.write("".join(lines))
            self.stream.flush()


def configure(level: str) -> None:
    """All loggers of the process, uvicorn's too."""
    handler = BufferedHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    # what no line shows is not gathered (logging's "Optimization"): the caller's place alone costs a walk up the stack
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def flush() -> None:
    for handler in logging.getLogger().handlers:
        handler.flush()
