"""A server that is loaded: asked over HTTP, its process read through /proc."""

import os
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

METRICS_S = 5.0  # a server that needs longer has none for us
ANSWER_S = 300.0  # a server that needs longer has lost the request
# as the streams that are measured: no proxy, whatever HTTP_PROXY says
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
# series of a model appear with its first sequence
CACHE_COUNTS = (
    "addnorm_cache_hits_total",
    "addnorm_cache_misses_total",
    "addnorm_merged_sequences_total",
)


@dataclass(frozen=True)
class CacheCounts:
    """Sequences of all models: held; not held; of the latter, merged with an equal one."""

    hits: int = 0
    misses: int = 0
    merged: int = 0

    @classmethod
    def of_metrics(cls, values: Mapping[str, float]) -> "CacheCounts | None":
        """None if no metric is Addnorm's."""
        if not any(name.startswith("addnorm_") for name in values):
            return None
        return cls(*(int(values.get(name, 0)) for name in CACHE_COUNTS))

    def since(self, before: "CacheCounts") -> "CacheCounts":
        return CacheCounts(
            self.hits - before.hits, self.misses - before.misses, self.merged - before.merged
        )


@dataclass(frozen=True)
class Server:
    """The address of a server, and its process where we know it."""

    host: str
    port: int
    pid: int | None = None
    headers: tuple[str, ...] = ()  # sent with every request

    def ask(self, body: bytes, path: str = "/v1/infer", headers: Sequence[str] = ()) -> bytes:
        """The answer to one body. HTTPError unless it is a success."""
        request = self._request(path, body, "Content-Type: application/json", *headers)
        with DIRECT.open(request, timeout=ANSWER_S) as answer:
            return bytes(answer.read())

    def get(self, path: str) -> bytes:
        """HTTPError unless it is a success."""
        with DIRECT.open(self._request(path, None), timeout=METRICS_S) as answer:
            return bytes(answer.read())

    def _request(self, path: str, body: bytes | None, *headers: str) -> urllib.request.Request:
        fields = dict(header.split(": ", 1) for header in (*self.headers, *headers))
        return urllib.request.Request(f"http://{self.host}:{self.port}{path}", body, fields)

    def cpu_s(self) -> float | None:
        """CPU seconds of the process so far, user and system."""
        if self.pid is None:
            return None
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])  # utime, stime: proc(5)
        return ticks / os.sysconf("SC_CLK_TCK")

    def memory_mib(self, kind: str = "Pss") -> float | None:
        """Resident memory of the process, MiB. "Pss": a page that is mapped twice counts once.
        "Anonymous": what no file backs; it does not change with the processes that come and go, and
        had shared a library's pages."""
        if self.pid is None:
            return None
        text = Path(f"/proc/{self.pid}/smaps_rollup").read_text()
        sizes = dict(line.split(":") for line in text.splitlines()[1:])
        return int(sizes[kind].split()[0]) / 1024

    def metrics(self) -> dict[str, float]:
        """Each metric's sum over its labels. Empty where there are none that we may read."""
        try:
            return sum_metrics(self.get("/metrics").decode())
        except (OSError, ValueError, HTTPException):  # of other servers, or for lack of a key
            return {}

    def cache_counts(self) -> CacheCounts | None:
        """Since its start. None if it has no metrics that we may read, or is not Addnorm."""
        return CacheCounts.of_metrics(self.metrics())


def sum_metrics(text: str) -> dict[str, float]:
    """The values in Prometheus' text. ValueError if it is none."""
    values = Counter[str]()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            values[sample.name] += sample.value  # type: ignore[assignment]
    return dict(values)
