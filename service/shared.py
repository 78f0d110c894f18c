"""What is scraped from one of several workers: the numbers of all, through the files that prometheus-client keeps."""

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

LEAST = ("process_start_time_seconds", "process_max_fds")  # of the rest, the sum


def registry() -> CollectorRegistry:
    everyone = CollectorRegistry()
    MultiProcessCollector(everyone)
    everyone.register(Processes(Path(os.environ["PROMETHEUS_MULTIPROC_DIR"])))
    return everyone


class Processes(Collector):
    """ProcessCollector's numbers over the parent and its live workers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterator[Metric]:
        parent = os.getppid()
        found: dict[str, list[Metric]] = defaultdict(list)
        for pid in (parent, *self._workers()):
            for metric in ProcessCollector(pid=lambda pid=pid: pid, registry=None).collect():  # type: ignore[misc]
                found[metric.name].append(metric)
        for name, metrics in found.items():
            values = [metric.samples[0].value for metric in metrics]
            value = min(values) if name in LEAST else sum(values)
            if name == "process_cpu_seconds":
                value += _ended_cpu_s(parent)
            metric = metrics[0]
            metric.samples = [metric.samples[0]._replace(value=value)]
            yield metric

    def _workers(self) -> list[int]:
        """Those whose gauges count: a dead one's are removed."""
        return [int(path.stem.rpartition("_")[2]) for path in self._folder.glob("gauge_livesum_*.db")]


def _ended_cpu_s(parent: int) -> float:
    """What the parent's dead children used: without it, the sum would fall with each of them."""
    fields = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")  # cutime, cstime
