"""A server that is measured: how it is asked, and how its right answers are known."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from addnorm.load.run import Figures, Load, Reference, compute_alone, measure
from addnorm.load.servers import Server
from addnorm.load.stream import PROFILES, Stream, make
from addnorm.service.engine.bundle import Bundle

NAIVE, FP32, INT8 = "naive", "fp32", "int8"
WARM_UP_S = 1.0

Contenders = dict[str, "Contender"]  # by name


@dataclass(frozen=True)
class Line:
    """A load. A contender that is not there is left out."""

    traffic: str  # a profile, or what the contenders make
    num_callers: int
    who: tuple[str, ...]


@dataclass(frozen=True)
class Contender:
    """A server, how it is asked, and how its right answers are known."""

    name: str
    serve: Callable[[], Server]
    reference: Reference
    bundle: Bundle
    fields: Mapping[str, str] = field(default_factory=dict)  # of each body (model, precision)
    headers: tuple[str, ...] = ()
    make_stream: Callable[[str, Mapping[str, str]], Stream] | None = None  # of no profile
    streams: dict[str, Stream] = field(default_factory=dict)

    def stream(self, traffic: str) -> Stream:
        """A profile's stream, or another. The right answers are computed at first use."""
        if traffic not in self.streams:
            self.streams[traffic] = self._make(traffic)
            self.reference.learn(self.streams[traffic].requests, f"{traffic} for {self.name}")
        return self.streams[traffic]

    def _make(self, traffic: str) -> Stream:
        if traffic not in PROFILES and self.make_stream:
            return self.make_stream(traffic, self.fields)
        return make(PROFILES[traffic], self.bundle.manifest.limits, fields=dict(self.fields))

    def prepare(self, traffic: str) -> None:
        """All that must not be timed: starts the server, warms it up, computes right answers."""
        is_cold = not self.streams
        self.stream(traffic)
        if is_cold:
            self.run(traffic, Load(2, WARM_UP_S))

    def run(self, traffic: str, load: Load) -> Figures:
        load = replace(load, warm_up_s=0.0, headers=self.headers)
        stream = self.stream(traffic)
        return measure(self.serve(), stream, self.reference, load, progress=False).figures


def in_precision(
    serve: Callable[[], Server],
    bundle: Bundle,
    precision: str,
    tolerance: float | None = None,
    headers: tuple[str, ...] = (),
    most_alone: int | None = None,
    **fields: str,
) -> Contender:
    """A server of this bundle, which computes in its default precision unless it is told.
    tolerance, most_alone: as of `Reference`."""
    if precision != bundle.manifest.default_precision:
        fields["precision"] = precision
    reference = Reference(compute_alone(bundle, precision), tolerance, most_alone)
    return Contender(precision, serve, reference, bundle, fields, headers)
