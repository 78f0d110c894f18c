"""The server as a process of its own, and the memory of this one."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.waiting import PATIENCE_S


def rss_mib() -> float:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


class Process:
    """`addnorm serve` on a free port, its log read line by line."""

    def __init__(
        self,
        bundles: Path | None,
        *arguments: str,
        max_files: int | None = None,
        **environment: str,
    ) -> None:
        """bundles: None if the arguments name models. max_files: that it may open; None: as many as
        this process."""
        self.lines: list[dict[str, Any]] = []
        limited = ["sh", "-c", f'ulimit -n {max_files}; exec "$@"', "sh"] if max_files else []
        command = [sys.executable, "-m", "addnorm", "serve"]
        command += [] if bundles is None else ["--bundles", str(bundles)]
        self.process = subprocess.Popen(
            [*limited, *command, *arguments],
            env={**os.environ, "ADDNORM_PORT": "0", **environment},
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        started = self.wait_for(lambda line: "running on" in line["message"])
        if "socket" in started["message"]:
            return
        self.port = int(started["message"].split(":")[2].split()[0])
        self.url = f"http://127.0.0.1:{self.port}"

    def _read(self) -> None:
        assert self.process.stderr
        with self.process.stderr:
            for line in self.process.stderr:
                if line.startswith("{"):  # no warning of an exporter's
                    self.lines.append(json.loads(line))

    def wait_for(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            for line in list(self.lines):
                if wanted(line):
                    return line
            time.sleep(0.01)
        raise AssertionError(f"never logged; last were {self.lines[-3:]}")

    def terminate(self) -> int:
        """Exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        code = self.process.wait(PATIENCE_S)
        self._reader.join()
        return code
