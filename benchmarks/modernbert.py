"""ModernBERT-base's shape with random weights: beside transformers behind FastAPI, and what long
sequences cost."""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from addnorm.export.sources import sources
from addnorm.export.writer import Plan, export
from addnorm.load.measure.contender import FP32, INT8, Line
from addnorm.load.measure.rounds import Rounds, Side, served
from addnorm.load.sweep.tables import TITLES, Row, ratios
from addnorm.service.runtime.bundle import Bundle
from benchmarks import comparison
from benchmarks.bench.ceilings import Offline, fixed
from benchmarks.bench.contenders import TRANSFORMERS, Servers
from benchmarks.comparison import Goal
from benchmarks.findings import BUILD, BUNDLES, Findings, Options, newest

NAME, LONGEST, SEED = "modernbert-base", 2048, 0
WHO = (TRANSFORMERS, FP32, INT8)
LINES = {"padded": Line("big", 8, WHO), "small": Line("small", 8, WHO)}
LENGTHS, LEAST_OF_SHORT = (256, 2048), 0.65  # windows: tokens/s of the longer over the shorter
TITLE = "32 sequences, 70 % padding, 8 callers"
ROWS = (
    Row(TITLE, "tokens_per_s", "padded", TRANSFORMERS),
    Row("1 - 4 sequences, 8 callers", "tokens_per_s", "small", TRANSFORMERS),
    Row("the same", "p99_ms", "small", TRANSFORMERS),
    *(Row(f"engine, {length} tokens", "tokens_per_s", f"{length} tokens") for length in LENGTHS),
)
GOALS = (
    Goal("padded", FP32, TRANSFORMERS, "tokens_per_s", 2.0),
    Goal("padded", INT8, TRANSFORMERS, "tokens_per_s", 4.0),
)


def run(options: Options) -> Findings:
    folder = BUILD / NAME
    bundle = _bundle(folder)
    with ExitStack() as stack:
        models = Servers(stack).checkpoint(bundle, folder)
        sides = [*served(models, LINES), *_engines(bundle)]
        figures = comparison.measured(sides, options)
    found = comparison.compared(figures, ROWS, {**TITLES, TRANSFORMERS: "transformers"}, GOALS)
    lines, missed = _of_length(figures)
    return Findings(f"{found.tables}\n{lines}", [*found.missed, *missed], figures)


def _bundle(folder: Path) -> Bundle:
    """Made at the first call."""
    if not (folder / "config.json").exists():
        _write(folder)
    if not (BUNDLES / NAME).exists():
        export(sources.checkpoint(folder), BUNDLES, NAME, None, Plan(precisions=(FP32, INT8)))
    return newest(NAME)


def _write(folder: Path) -> None:
    import torch
    from transformers import ModernBertConfig, ModernBertModel

    torch.manual_seed(SEED)
    ModernBertModel(ModernBertConfig(max_position_embeddings=LONGEST)).save_pretrained(folder)


def _engines(bundle: Bundle) -> Iterator[Side]:
    """One sequence at a time, without a server."""
    for length in LENGTHS:
        sequences = fixed(length, 4, bundle.manifest.limits)
        for who in (FP32, INT8):
            rate = partial(Offline(bundle, who).tokens_per_s, sequences, 1, length)
            yield Side(f"{length} tokens", who, partial(_rate, rate), partial(rate, 0.1))


def _rate(rate: partial[float], seconds: float) -> dict[str, float]:
    return {"tokens_per_s": rate(seconds)}


def _of_length(figures: Rounds) -> tuple[str, list[str]]:
    """Lines and missed goals: what long sequences keep of the speed of short ones."""
    short, long = (f"{length} tokens" for length in LENGTHS)
    lines, missed = [], []
    for who in (FP32, INT8):
        found = sorted(
            ratios(
                figures.get(f"{long}/{who}", []), figures.get(f"{short}/{who}", []), "tokens_per_s"
            )
        )
        if not found:
            continue
        middle = found[len(found) // 2]
        said = f"{who}: {long} at {middle:.2f} x the tokens/s of {short}"
        lines.append(f"- {said}")
        if not middle >= LEAST_OF_SHORT:
            missed.append(f"{said}, at least {LEAST_OF_SHORT} x is wanted")
    return "\n".join(["", *lines]), missed
