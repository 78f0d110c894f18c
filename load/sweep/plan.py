"""What a sweep measures: padding and load of a server, beside another one if it is given.

The servers run already.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any

from addnorm.load.first_answer import reason
from addnorm.load.measure.check import NAIVE_TOLERANCE, Reference, alone
from addnorm.load.measure.contender import (
    FP32,
    INT8,
    NAIVE,
    Contender,
    Contenders,
    Line,
    in_precision,
)
from addnorm.load.measure.machine import machine
from addnorm.load.measure.rounds import (
    TIMING,
    Clock,
    Timing,
    compared,
    interleave,
    open_loops,
    prepare,
    served,
)
from addnorm.load.measure.run import Load, measure
from addnorm.load.measure.stream import PROFILES, SWEEP_LONGEST
from addnorm.load.servers import METRICS_S, Server
from addnorm.load.sweep import overview
from addnorm.load.sweep.overview import Findings
from addnorm.load.sweep.tables import (
    TITLES,
    Row,
    contenders_table,
    open_loop_table,
    padding_share,
    table,
)
from addnorm.service.runtime.bundle import Bundle

PRECISIONS = (FP32, INT8)  # which the tables and plots have a place for
WHO = (NAIVE, FP32, INT8)
CLOSED = {  # one caller, and what many reach: the ends of the open loop
    "small-1": Line("small", 1, WHO),
    "small-32": Line("small", 32, WHO),
}
PADDED = {f"longest-{n}": Line(f"longest-{n}", 8, WHO) for n in SWEEP_LONGEST}
ROWS = (
    Row("1 - 4 sequences, 1 caller", "p50_ms", "small-1"),
    Row("the same", "p99_ms", "small-1"),
    Row("1 - 4 sequences, 32 callers", "requests_per_s", "small-32"),
    Row("the same", "tokens_per_s", "small-32"),
    Row("the same", "p99_ms", "small-32"),
    *(
        Row(f"32 sequences, {padding_share(longest):.0%} padding", "tokens_per_s", line)
        for line, longest in zip(PADDED, SWEEP_LONGEST, strict=True)
    ),
)


@dataclass(frozen=True)
class Target:
    """A server, and the name that the report gives it."""

    name: str
    url: str
    server: Server


@dataclass(frozen=True)
class Sweep:
    """What is measured, and what is said of it."""

    ours: Target
    bundle: Bundle
    precisions: list[str]  # of PRECISIONS
    beside: Target | None = None
    tolerance: float | None = None
    headers: tuple[str, ...] = ()
    fields: dict[str, str] = field(default_factory=dict)  # of each body of ours

    def contenders(self) -> Contenders:
        """The other server under the name of the baseline."""
        found = [
            in_precision(
                lambda: self.ours.server,
                self.bundle,
                precision,
                self.tolerance,
                self.headers,
                **self.fields,
            )
            for precision in self.precisions
        ]
        if beside := self.beside:
            near = Reference(alone(self.bundle, FP32), NAIVE_TOLERANCE)
            if FP32 in self.precisions:
                near = found[self.precisions.index(FP32)].reference.near(NAIVE_TOLERANCE)
            found.append(Contender(NAIVE, lambda: beside.server, near, self.bundle))
        return {contender.name: contender for contender in found}

    def lines(self) -> dict[str, Line]:
        """The lines of the report that the model is long enough for."""
        longest = self.bundle.manifest.limits.max_positions
        fitting = (name for name in PADDED if PROFILES[name].max_length <= longest)
        return {**CLOSED, **{name: PADDED[name] for name in fitting}}

    @property
    def titles(self) -> dict[str, str]:
        return {**TITLES, NAIVE: self.beside.name} if self.beside else TITLES


def run(sweep: Sweep, minutes: float, timing: Timing = TIMING) -> Findings:
    """SystemExit if a server does not answer rightly from the beginning."""
    where, contenders = machine(), sweep.contenders()
    for contender in contenders.values():
        _check_answers(contender)
    clock = Clock(60 * minutes)
    sides = served(contenders, sweep.lines())
    prepare(sides, clock)
    figures = interleave(sides, 0.7 * clock.left_s(), clock, timing=timing)
    points = open_loops(contenders, figures, 0.9 * clock.left_s(), clock, timing)
    clock.close()
    of_points = {f"open/{who}": runs for who, runs in points.items()}
    counted = {who: compared(who, figures | of_points) for who in contenders}
    is_near = sweep.tolerance is not None
    return Findings(sweep.bundle, where, figures, points, counted, [], sweep.titles, is_near)


def _check_answers(contender: Contender) -> None:
    load = Load(1, METRICS_S, warm_up_s=0.0, num_answers=1, headers=contender.headers)
    server, stream = contender.serve(), contender.stream("small")
    result = measure(server, stream, contender.reference, load, progress=False)
    if result.num_errors:
        said = reason(server, stream, result, contender.bundle, contender.headers)
        raise SystemExit(f"{server.host}:{server.port}: the first answer is not right: {said}")


def page(sweep: Sweep, findings: Findings, facts: dict[str, str]) -> str:
    """HTML. facts: what else was measured with what, a line each."""
    name = f"{sweep.bundle.ref} under load"
    title = f"{name}, beside {sweep.beside.name}" if sweep.beside else name
    return overview.page(title, findings, text(findings, facts))


def text(findings: Findings, facts: dict[str, str]) -> str:
    """Markdown."""
    num_rounds = max(map(len, findings.figures.values()), default=0)
    titles = findings.titles
    parts = [
        "## Figures",
        f"Rounds in which all loads took turns: {num_rounds}. The figures are medians. In brackets "
        "the ratio of the pairs over the baseline, if there is one: **median**, least - most; more "
        "is better. The last column names the line in the JSON.",
        contenders_table(findings.figures, ROWS, titles),
        "## Latency against load",
        open_loop_table(findings.points, titles),
        "## What was measured",
        table(["what", "value"], facts.items()),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def facts(sweep: Sweep, findings: Findings, command: str) -> dict[str, str]:
    """What the figures are of. command: the line that measured them."""
    ours, where = sweep.ours, findings.machine
    entry = _entry(ours.server, sweep.fields.get("model", sweep.bundle.manifest.name))
    found = {
        "server": _server(ours.url, entry),
        "model": f"{sweep.bundle.ref}, {sweep.bundle.manifest.layout}",
        **{
            f"fingerprint, {precision}": f"`{digest}`"
            for precision, digest in entry.get("fingerprint", {}).items()
            if precision in sweep.precisions
        },
        "answers compared": "; ".join(_compared(sweep, findings)),
    }
    if sweep.beside:
        found["baseline"] = f"{sweep.beside.name}, {sweep.beside.url}"
    return {
        **found,
        "callers ran on": f"{where['processor']}, {where['cores']} cores, load average "
        f"{where['load_average']:.1f} before the run, onnxruntime {where['onnxruntime']}",
        "date": str(where["date"]),
        "command": f"`{command}`",
    }


def _compared(sweep: Sweep, findings: Findings) -> Iterator[str]:
    for who, counted in findings.bits.items():
        limit = NAIVE_TOLERANCE if who == NAIVE else sweep.tolerance
        how = "bit for bit" if limit is None else f"within {limit:g}"
        num_right = counted["num_answers"] - counted["num_errors"]
        title = sweep.titles[who]
        yield f"{title}: {num_right:,.0f} of {counted['num_answers']:,.0f} right, {how}"


def _server(url: str, entry: dict[str, Any]) -> str:
    """The server's version, runtime and processor, as it reports them."""
    parts: dict[str, str] = next(iter(entry.get("fingerprint_parts", {}).values()), {})
    if not parts:
        return f"{url}, which does not say what it is"
    version, runtime = parts.get("addnorm"), parts.get("onnxruntime")
    return f"{url}: Addnorm {version}, onnxruntime {runtime}, {entry.get('processor')}"


def _entry(server: Server, model: str) -> dict[str, Any]:
    """The model's entry in /v1/models. Empty if the server has none that we may read."""
    try:
        entry = json.loads(server.get(f"/v1/models/{model}"))
    except (OSError, ValueError, HTTPException):
        return {}
    return entry if isinstance(entry, dict) else {}
