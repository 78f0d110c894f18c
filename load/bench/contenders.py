"""The servers that are measured, how they are asked, and how their right answers are known."""

import subprocess
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path

from addnorm.load import servers
from addnorm.load.bench import texts
from addnorm.load.bench.check import NAIVE_TOLERANCE, Reference, alone
from addnorm.load.bench.run import Figures, Load, Result, measure
from addnorm.load.bench.stream import PROFILES, Stream, make
from addnorm.load.servers import Server
from addnorm.service.runtime import bundle as bundles
from addnorm.service.runtime.bundle import Bundle

NAIVE, ONE_THREAD, TYPED, READY, INFINITY = "naive", "naive-1", "typed", "ready", "infinity"
FP32, INT8 = "fp32", "int8"
BEFORE = {FP32: "before-fp32", INT8: "before-int8"}  # another checkout's
TENSORS = {FP32: "fp32-tensors", INT8: "int8-tensors"}  # whose answers are safetensors
# Another checkout may round otherwise, or quantize in another way, which changes single values by
# more than 0.1. So its answers are checked coarsely.
TOLERANCE = {FP32: NAIVE_TOLERANCE, INT8: 1.0}
WARM_UP_S = 1.0

Contenders = dict[str, "Contender"]  # by name


@dataclass(frozen=True)
class Contender:
    """A server, how it is asked, and how its right answers are known."""

    name: str
    serve: Callable[[], Server]
    reference: Reference
    bundle: Bundle
    fields: Mapping[str, str] = field(default_factory=dict)  # of each body (model, precision)
    headers: tuple[str, ...] = ()
    streams: dict[str, Stream] = field(default_factory=dict)

    def stream(self, traffic: str) -> Stream:
        """A profile's stream, or `texts` or `ids`. The right answers are computed at first use."""
        if traffic not in self.streams:
            self.streams[traffic] = self._make(traffic)
            self.reference.learn(self.streams[traffic].requests, f"{traffic} for {self.name}")
        return self.streams[traffic]

    def _make(self, traffic: str) -> Stream:
        if traffic in PROFILES:
            return make(PROFILES[traffic], self.bundle.manifest.limits, fields=dict(self.fields))
        fields = {"model": self.bundle.manifest.name, **self.fields}
        return texts.streams(self.bundle, fields)[traffic]

    def prepare(self, traffic: str) -> None:
        """All that must not be timed: starts the server, warms it up, computes right answers."""
        is_cold = not self.streams
        self.stream(traffic)
        if is_cold:
            self.run(traffic, Load(2, WARM_UP_S))

    def run(self, traffic: str, load: Load) -> Figures:
        load = replace(load, warm_up_s=0.0, headers=self.headers)
        stream = self.stream(traffic)
        return _figures(measure(self.serve(), stream, self.reference, load, progress=False))


def _figures(result: Result) -> Figures:
    numbers = {
        name: value for name, value in asdict(result).items() if isinstance(value, int | float)
    }
    return {**numbers, "num_errors": result.num_errors}


@dataclass(frozen=True)
class Beside:
    """Another checkout of Addnorm, and a folder with its own exports of the same models."""

    checkout: Path
    bundles: Path

    def bundle(self, ours: Bundle) -> Bundle:
        path = self.bundles / ours.ref
        if not path.exists():
            raise SystemExit(f"{path} is missing: export it there with {self.checkout}'s exporter")
        return bundles.read(path)

    def commit(self) -> str:
        """As git names it."""
        return commit(self.checkout)


def commit(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "no commit known"


def addnorm(stack: ExitStack, bundle: Bundle, beside: Beside | None) -> Contenders:
    """In each precision of the bundle; after them the other checkout's."""
    server = _lazy(stack, servers.addnorm(bundle))
    found = [in_precision(server, bundle, each) for each in bundle.manifest.precisions]
    if beside:
        before = _lazy(stack, servers.serving([beside.bundle(bundle)], beside.checkout.resolve()))
        found += [
            replace(
                contender,
                name=BEFORE[contender.name],
                serve=before,
                reference=contender.reference.near(TOLERANCE[contender.name]),
                streams={},
            )
            for contender in found
        ]
    return _by_name(found)


def in_precision(
    serve: Callable[[], Server],
    bundle: Bundle,
    precision: str,
    tolerance: float | None = None,
    headers: tuple[str, ...] = (),
    **fields: str,
) -> Contender:
    """A server of this bundle, which computes in its default precision unless it is told."""
    if precision != bundle.manifest.default_precision:
        fields["precision"] = precision
    reference = Reference(alone(bundle, precision), tolerance)
    return Contender(precision, serve, reference, bundle, fields, headers)


def preset(
    stack: ExitStack, bundle: Bundle, padded: Bundle, beside: Beside | None = None
) -> Contenders:
    """Addnorm and the naive server. padded: the same model in the layout that the latter needs."""
    ours = addnorm(stack, bundle, beside)
    flags = {NAIVE: (), ONE_THREAD: ("--threads", "1"), TYPED: ("--typed",)}
    near = ours[FP32].reference.near(NAIVE_TOLERANCE)
    naive = [
        Contender(name, _lazy(stack, servers.naive(padded, *own)), near, bundle)
        for name, own in flags.items()
    ]
    accept = ("Accept: application/vnd.safetensors",)
    tensors = [
        replace(ours[name], name=other, headers=accept, streams={})
        for name, other in TENSORS.items()
        if name in ours
    ]
    return {**_by_name(naive), **ours, **_by_name(tensors)}


def tiny(stack: ExitStack, bundle: Bundle, beside: Beside | None = None) -> Contenders:
    """Addnorm over a model that costs almost nothing, and HTTP alone with the same answer."""
    ours = addnorm(stack, bundle, beside)

    @cache
    def ready() -> Server:
        body = make(PROFILES["same"], bundle.manifest.limits).requests[0].body
        return stack.enter_context(servers.ready_made(ours[FP32].serve().ask(body)))

    return {READY: Contender(READY, ready, ours[FP32].reference, bundle), **ours}


def real(
    stack: ExitStack,
    bundle: Bundle,
    infinity: Path | None,
    checkpoint: Path | None,
    beside: Beside | None = None,
) -> Contenders:
    """Of a bundle with a tokenizer. infinity: its command, if it is installed."""
    ours = addnorm(stack, bundle, beside)
    if not infinity or not checkpoint:
        return ours
    name = bundle.manifest.name
    server = _lazy(stack, servers.infinity(infinity, checkpoint, name))
    near = ours[FP32].reference.near(NAIVE_TOLERANCE)
    return {INFINITY: Contender(INFINITY, server, near, bundle), **ours}


def _lazy(stack: ExitStack, server: AbstractContextManager[Server]) -> Callable[[], Server]:
    """Starts it at the first call; it ends with the stack."""
    return cache(lambda: stack.enter_context(server))


def _by_name(contenders: list[Contender]) -> Contenders:
    return {contender.name: contender for contender in contenders}
