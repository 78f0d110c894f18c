"""Logs as JSON, one object a line on stderr."""

import io
import logging
import sys
import threading
import time
from logging.handlers import MemoryHandler
from typing import TextIO

from pythonjsonlogger.core import RESERVED_ATTRS, LogData
from pythonjsonlogger.orjson import OrjsonFormatter

FIELDS = {"asctime": "time", "levelname": "level", "name": "logger", "message": "message"}
NOT_SHOWN = [*RESERVED_ATTRS, "color_message"]  # uvicorn's messages again, with terminal colours
MAX_BUFFERED = 100  # records; formatting and writing them takes about 1 ms


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


def buffered(stream: TextIO) -> MemoryHandler:
    """Holds records and writes them together: each write releases Python's global lock.

    It writes from a warning on, when MAX_BUFFERED records are held, when flushed, and at exit.
    """
    target = logging.StreamHandler(stream)
    target.setFormatter(JsonFormatter())
    return MemoryHandler(MAX_BUFFERED, logging.WARNING, target)


def configure(level: str) -> None:
    """Sets up all loggers of the process, uvicorn's too."""
    # unbuffered: a line that could not be written must not fail again at exit
    stderr = io.TextIOWrapper(
        io.FileIO(sys.stderr.fileno(), "w", closefd=False), "utf-8", write_through=True
    )
    logging.raiseExceptions = False  # a full disk or a closed pipe costs log lines only
    # no line shows these, and gathering them costs time (logging's "Optimization")
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging.basicConfig(level=level.upper(), handlers=[buffered(stderr)], force=True)
    # Python writes these to stderr by itself, not as JSON
    logging.captureWarnings(True)
    threading.excepthook = _log_thread_end


def _log_thread_end(ended: threading.ExceptHookArgs) -> None:
    name = ended.thread.name if ended.thread else "unknown"
    known = (ended.exc_type, ended.exc_value or ended.exc_type(), ended.exc_traceback)
    logging.getLogger("addnorm").error("the thread %s has ended", name, exc_info=known)


def flush() -> None:
    for handler in logging.getLogger().handlers:
        handler.flush()
