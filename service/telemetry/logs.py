"""Logs as JSON, one object a line on stderr. A log that nobody reads costs lines, nothing else."""

import logging
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from logging.handlers import BufferingHandler

from pythonjsonlogger.core import RESERVED_ATTRS, LogData
from pythonjsonlogger.orjson import OrjsonFormatter

from addnorm.service.locks import LockOrder, new_condition

FIELDS = {"asctime": "time", "levelname": "level", "name": "logger", "message": "message"}
NOT_SHOWN = [*RESERVED_ATTRS, "color_message"]  # uvicorn's messages again, with terminal colours
MAX_BUFFERED = 100  # records; formatting them takes about 1 ms
# Bytes of lines that wait for a reader. Larger: more memory while the reader is away. Smaller: a
# shorter absence costs lines; a busy server writes 1 MB/s.
MAX_WAITING_BYTES = 8 * 2**20
PIECE_BYTES = 65_536  # of one write, a pipe's capacity
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


class Writer:
    """Writes lines on a thread of its own: only that one waits for the reader."""

    def __init__(self, descriptor: int, tell_lost: Callable[[int], bytes]) -> None:
        """tell_lost: the line that says how many lines were lost."""
        self._descriptor, self._tell_lost = descriptor, tell_lost
        self._changed = new_condition(LockOrder.LOG)
        # lines; those that the log has not told of; guarded by _changed, read without it
        self.num_lost = self._num_untold = 0
        self._waiting = deque[list[bytes]]()  # guarded by _changed
        self._num_bytes = 0  # not yet written; guarded by _changed
        self._closing = False  # guarded by _changed
        threading.Thread(target=self._run, name="log", daemon=True).start()

    def put(self, lines: list[bytes]) -> None:
        """Never waits. The lines are lost if too many wait."""
        with self._changed:
            if self._num_bytes > MAX_WAITING_BYTES:
                self._lose(len(lines))
            else:
                self._waiting.append(lines)
                self._num_bytes += sum(map(len, lines))
                self._changed.notify_all()

    def finish(self) -> None:
        """Waits until all is written, or the reader has taken nothing for FINISH_S."""
        with self._changed:
            left = self._num_bytes + 1
            while 0 < self._num_bytes < left:
                left = self._num_bytes
                self._changed.wait_for(lambda: not self._num_bytes, FINISH_S)

    def close(self) -> None:
        self.finish()
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def _run(self) -> None:
        while lines := self._next():
            if not self._write(b"".join(lines)):
                with self._changed:
                    self._lose(len(lines))
            elif self._num_untold:
                self._tell()

    def _next(self) -> list[bytes] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            return self._waiting.popleft() if self._waiting else None

    def _lose(self, num_lines: int) -> None:
        self.num_lost += num_lines
        self._num_untold += num_lines

    def _tell(self) -> None:
        with self._changed:
            num, self._num_untold = self._num_untold, 0
            line = self._tell_lost(num)
            self._num_bytes += len(line)
        self._write(line)

    def _write(self, text: bytes) -> bool:
        """False if that cannot be: the pipe is closed, the disk full."""
        left = memoryview(text)
        try:
            while left:
                num_written = self._write_piece(left[:PIECE_BYTES])
                left = left[num_written:]
                self._count_written(num_written)
        except OSError:
            self._count_written(len(left))
            return False
        return True

    def _write_piece(self, piece: memoryview) -> int:
        while True:
            try:
                return os.write(self._descriptor, piece)
            except BlockingIOError:  # who started the process has made the descriptor so
                select.select([], [self._descriptor], [])

    def _count_written(self, num_bytes: int) -> None:
        with self._changed:
            self._num_bytes -= num_bytes
            if not self._num_bytes:
                self._changed.notify_all()


class LineHandler(BufferingHandler):
    """Holds records and formats them together.

    It hands them to its writer from a warning on, when MAX_BUFFERED records are held, when flushed,
    and at exit.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(MAX_BUFFERED)
        self.setFormatter(JsonFormatter())
        self.writer = Writer(descriptor, self._lost)

    def shouldFlush(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING or super().shouldFlush(record)

    def flush(self) -> None:
        self.acquire()
        try:
            lines = [line for record in self.buffer if (line := self._line(record))]
            self.buffer.clear()
            if lines:
                self.writer.put(lines)
        finally:
            self.release()

    def close(self) -> None:
        super().close()
        self.writer.close()

    def _line(self, record: logging.LogRecord) -> bytes:
        try:
            return self.format(record).encode() + b"\n"
        except Exception:  # whatever the record holds, the others are written
            self.handleError(record)
            return b""

    def _lost(self, num_lines: int) -> bytes:
        words = "%d lines of the log were lost: nobody read them, or they could not be written"
        record = logging.LogRecord("addnorm", logging.WARNING, "", 0, words, (num_lines,), None)
        return self._line(record)


def configure(level: str) -> None:
    """Sets up all loggers of the process, uvicorn's too."""
    # None if it was closed when the process began
    descriptor = sys.stderr.fileno() if sys.stderr else os.open(os.devnull, os.O_WRONLY)
    logging.raiseExceptions = False  # a record that cannot be shown costs its line only
    # no line shows these, and gathering them costs time (logging's "Optimization")
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging.basicConfig(level=level.upper(), handlers=[LineHandler(descriptor)], force=True)
    # Python writes these to stderr by itself, not as JSON
    logging.captureWarnings(True)
    threading.excepthook = _log_thread_end


def _log_thread_end(ended: threading.ExceptHookArgs) -> None:
    name = ended.thread.name if ended.thread else "unknown"
    known = (ended.exc_type, ended.exc_value or ended.exc_type(), ended.exc_traceback)
    logging.getLogger("addnorm").error("the thread %s has ended", name, exc_info=known)


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
