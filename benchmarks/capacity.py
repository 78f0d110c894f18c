"""The forecast of `addnorm load --target` beside what is measured, of three models in turn.

The forecast is made of a closed loop of a few seconds. Measured is the highest rate of Poisson
arrivals with the p99, found by halving: the one is not made of the other.
"""

from contextlib import ExitStack
from statistics import median

from addnorm.load.capacity import Goal, Subject
from addnorm.load.client import runner
from addnorm.load.sweep.tables import table
from benchmarks import processes
from benchmarks.findings import Findings, Options, newest

MODELS = ("all-minilm-l6-v2", "encoder", "gpt")
GOAL = Goal(texts=3, tokens=60, target=500, p99_s=0.2)
ROUNDS, HALVINGS = 5, 4
RUN_S = 8.0  # shorter runs end before the waits are as long as such a rate makes them
AMONG = 0.25, 1.05  # of what the closed loop reached: a slow machine holds less of that
NEAR = 0.15


def run(options: Options) -> Findings:
    rounds = options.times(ROUNDS)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in MODELS}
    with ExitStack() as stack, runner() as loop:
        subjects: dict[str, Subject] = {}
        for name in MODELS:
            bundle = newest(name)
            server = stack.enter_context(processes.addnorm(bundle))
            subject = Subject(server, bundle.manifest.limits, GOAL, {}, RUN_S)
            subjects[name] = subject
            stack.callback(subject.close)
        for number in range(rounds):
            for name in MODELS if number % 2 else reversed(MODELS):
                found[name].append(loop.run(_pair(subjects[name], number)))
    rows, missed, figures = [], list[str](), dict[str, dict[str, float]]()
    for name, pairs in found.items():
        predicted, measured = (median(side) for side in zip(*pairs, strict=True))
        ratio = median(one / other for one, other in pairs)
        rows.append((name, f"{predicted:,.0f}", f"{measured:,.0f}", f"{ratio:.2f}"))
        figures[name] = {"forecast": predicted, "measured": measured, "ratio": ratio}
        if abs(ratio - 1) > NEAR:
            missed.append(f"{name}: the forecast is {ratio:.2f} of what was measured")
    heads = ["model", "forecast, requests/s", "measured", "forecast over measured"]
    return Findings(table(heads, rows), missed, figures)


async def _pair(subject: Subject, seed: int) -> tuple[float, float]:
    """Requests a second: the forecast, and what is held."""
    most = await subject.most(GOAL.tokens)
    low, high = (share * most.per_s for share in AMONG)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if (await subject.at(middle, seed)).holds(GOAL.p99_s):
            low = middle
        else:
            high = middle
    return subject.forecast(most), (low + high) / 2
