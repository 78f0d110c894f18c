"""Families in the shapes of their published models, with random weights: beside transformers behind
FastAPI, engines alone at fixed lengths, and what each shape costs."""

import os
import statistics
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from addnorm.export import sources
from addnorm.export.exporting import export
from addnorm.export.wishes import Wishes
from addnorm.export.writer import write_uncertified
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.bundle import Bundle
from benchmarks import comparison
from benchmarks.bench.ceilings import Offline, equal_lengths
from benchmarks.bench.contenders import TRANSFORMERS, Servers
from benchmarks.comparison import Goal
from benchmarks.contender import FP32, INT8, Line
from benchmarks.findings import BUILD, BUNDLES, Findings, Options, newest
from benchmarks.rounds import Rounds, Side, sides_of
from benchmarks.tables import TITLES, Row, ratios, short, table

SEED = 0
LENGTHS = (32, 256)  # tokens of a text
WHO = (TRANSFORMERS, FP32, INT8)
LINES = {
    "padded": Line("big", 8, WHO),
    "small": Line("small", 8, WHO),
    "alone": Line("small", 1, WHO),
}
ROWS = (
    Row("32 sequences, 70 % padding, 8 callers", "tokens_per_s", "padded", TRANSFORMERS),
    Row("1 - 4 sequences, 8 callers", "tokens_per_s", "small", TRANSFORMERS),
    Row("the same", "p99_ms", "small", TRANSFORMERS),
    Row("1 - 4 sequences, 1 caller", "tokens_per_s", "alone", TRANSFORMERS),
    Row("the same", "p99_ms", "alone", TRANSFORMERS),
)


@dataclass(frozen=True)
class Pair:
    """The tokens/s of an engine over those of another, each a shape at so many tokens."""

    over: tuple[str, int]
    under: tuple[str, int]
    least: float

    def lines(self, figures: Rounds) -> Iterator[tuple[str, str | None]]:
        """The ratio in each precision, and what was missed of it."""
        over, under = (_line(*side) for side in (self.over, self.under))
        for who in (FP32, INT8):
            over_runs, under_runs = (figures.get(f"{line}/{who}", []) for line in (over, under))
            if values := sorted(ratios(over_runs, under_runs, "tokens_per_s")):
                middle = values[len(values) // 2]
                sentence = f"{who}: {over} at {middle:.2f} x the tokens/s of {under}"
                wanted = f"{sentence}, at least {self.least} x is wanted"
                yield sentence, None if middle >= self.least else wanted


@dataclass(frozen=True)
class Shape:
    """A model of transformers with random weights. fields: of its configuration, beside the
    defaults."""

    family: str  # the beginning of its classes' names
    max_length: int
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def wishes(self) -> Wishes:
        return Wishes(precisions=(FP32, INT8), max_length=self.max_length)

    def bundle(self, name: str) -> Bundle:
        """Made at the first call."""
        if not (BUILD / name / "config.json").exists():
            self.write(BUILD / name)
        if not (BUNDLES / name).exists():
            source = sources.checkpoint(BUILD / name, self.wishes)
            export(source, BUNDLES, name)
        return newest(name)

    def graphs(self, folder: Path) -> Bundle:
        """Made at the first call, without a certificate: no server loads them."""
        if not (folder / bundles.MANIFEST).exists():
            folder.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory() as checkpoint:
                self.write(Path(checkpoint))
                source = sources.checkpoint(Path(checkpoint), self.wishes)
            write_uncertified(replace(source, originals=()), folder, folder.name, 1)
        return bundles.read_uncertified(folder)

    def write(self, folder: Path) -> None:
        """Draws its weights by SEED, and saves it as transformers does."""
        import torch
        import transformers

        torch.manual_seed(SEED)
        config = getattr(transformers, f"{self.family}Config")(**self.fields)
        getattr(transformers, f"{self.family}Model")(config).save_pretrained(folder)


BERT = {"vocab_size": 30_522}
MULTILINGUAL = {"vocab_size": 250_002, "max_position_embeddings": 514, "type_vocab_size": 1}
SMALL = {"hidden_size": 384, "intermediate_size": 1536, "num_attention_heads": 12}
LARGE = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16,
    "num_hidden_layers": 24,
}  # fmt: skip
DEBERTA = {
    "vocab_size": 128_100, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
    "num_attention_heads": 12, "type_vocab_size": 0, "relative_attention": True,
    "position_buckets": 256, "pos_att_type": "p2c|c2p", "share_att_key": True,
    "norm_rel_ebd": "layer_norm", "position_biased_input": False, "layer_norm_eps": 1e-7,
}  # fmt: skip
SHAPES = {
    "minilm-l6": Shape("Bert", 512, {**BERT, **SMALL, "num_hidden_layers": 6}),
    "minilm-l12": Shape("Bert", 512, {**BERT, **SMALL, "num_hidden_layers": 12}),
    "multilingual-small": Shape("Bert", 512, {**SMALL, "vocab_size": 250_037}),
    "bert-base": Shape("Bert", 512),
    "bert-large": Shape("Bert", 512, {**BERT, **LARGE}),
    "mpnet-base": Shape("MPNet", 512, {"vocab_size": 30_527, "max_position_embeddings": 514}),
    "xlm-roberta-base": Shape("XLMRoberta", 512, MULTILINGUAL),
    "xlm-roberta-large": Shape("XLMRoberta", 512, {**MULTILINGUAL, **LARGE}),
    "modernbert-small": Shape(
        "ModernBert",
        2048,
        {**SMALL, "num_hidden_layers": 12, "max_position_embeddings": 2048},
    ),
    "ettin-17m": Shape(
        "ModernBert",
        2048,
        {
            "hidden_size": 256, "intermediate_size": 384, "num_attention_heads": 4,
            "num_hidden_layers": 7, "max_position_embeddings": 2048,
        },
    ),
    "modernbert-base": Shape("ModernBert", 2048, {"max_position_embeddings": 2048}),
    "nomic-base": Shape("NomicBert", 2048),
    "gte-multilingual-base": Shape("Gte", 2048, {"vocab_size": 250_048}),
    "deberta-v3-xsmall": Shape(
        "DebertaV2",
        512,
        {**DEBERTA, "hidden_size": 384, "intermediate_size": 1536, "num_attention_heads": 6},
    ),
    "deberta-v3-base": Shape("DebertaV2", 512, DEBERTA),
    "mdeberta-v3-base": Shape("DebertaV2", 512, {**DEBERTA, "vocab_size": 251_000}),
    "qwen3-0.6b": Shape(
        "Qwen3",
        512,
        {
            "vocab_size": 151_669, "hidden_size": 1024, "intermediate_size": 3072,
            "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
            "head_dim": 128, "max_position_embeddings": 2048,
        },
    ),
}  # fmt: skip


def modernbert(options: Options) -> Findings:
    pair = Pair(("modernbert-base", 2048), ("modernbert-base", 256), 0.65)
    return _compare_shape("modernbert-base", ("padded", "small"), (2.0, 4.0), [pair], options)


def deberta(options: Options) -> Findings:
    pairs = [Pair(("deberta-v3-base", n), ("bert-base", n), 0.5) for n in (128, 512)]
    return _compare_shape("deberta-v3-base", ("padded", "small"), (2.0, 3.5), pairs, options)


def qwen3(options: Options) -> Findings:
    """No goals: it is for whom a vector a second is enough."""
    return _compare_shape("qwen3-0.6b", ("alone",), (0.0, 0.0), [], options)


def shapes(options: Options) -> Findings:
    """The cost of each shape: MiB of its files, and texts per second of the engine on all cores.
    Graphs stay in build/shapes, more than 10 GB: a second run takes some minutes."""
    figures = dict[str, dict[str, float]]()
    for name, shape in SHAPES.items():
        if options.wants(name):
            figures[name] = _cost(shape.graphs(BUILD / "shapes" / name), options)
            print(name, figures[name], flush=True)
    rows = [[f"`{name}`", *map(short, cost.values())] for name, cost in figures.items()]
    return Findings(table(["shape", *next(iter(figures.values()), ())], rows), (), figures)


def _cost(bundle: Bundle, options: Options) -> dict[str, float]:
    """Medians of rounds in which precisions and lengths take turns."""
    cost = dict[str, float]()
    for who in (FP32, INT8):
        files = bundle.path.glob(f"{bundle.graph(who).name}*")
        cost[f"MiB, {who}"] = sum(file.stat().st_size for file in files) / 2**20
    engines = {who: Offline(bundle, who) for who in (FP32, INT8)}
    sides = [(length, who) for length in LENGTHS for who in engines]
    rounds: dict[tuple[int, str], list[float]] = {side: [] for side in sides}
    for _ in range(options.times(3)):
        for length, who in sides:
            sequences = equal_lengths(length, 1024 // length, bundle.manifest.limits)
            rate = engines[who].tokens_per_s(sequences, len(os.sched_getaffinity(0)), 512, 1.0)
            rounds[length, who].append(rate / length)
    texts = {f"texts/s, {length} tokens, {who}": rounds[length, who] for length, who in sides}
    return cost | {name: statistics.median(rates) for name, rates in texts.items()}


def _compare_shape(
    name: str,
    lines: tuple[str, ...],
    least: tuple[float, float],
    pairs: list[Pair],
    options: Options,
) -> Findings:
    """least: of the first line's tokens/s over those of transformers, in fp32 and in int8."""
    bundle = SHAPES[name].bundle(name)
    engines = sorted({side for pair in pairs for side in (pair.over, pair.under)})
    with ExitStack() as stack:
        models = Servers(stack).checkpoint(bundle, BUILD / name)
        over_http = sides_of(models, {line: LINES[line] for line in lines})
        sides = [
            *over_http,
            *(engine_side for engine in engines for engine_side in _engine(*engine)),
        ]
        figures = comparison.measure(sides, options)
    goals = [
        Goal(lines[0], who, TRANSFORMERS, "tokens_per_s", goal)
        for who, goal in zip((FP32, INT8), least, strict=True)
    ]
    rows = [*ROWS, *(Row(_line(*engine), "tokens_per_s", _line(*engine)) for engine in engines)]
    findings = comparison.compare(figures, rows, {**TITLES, TRANSFORMERS: "transformers"}, goals)
    sentences = [line for pair in pairs for line in pair.lines(figures)]
    bullets = "\n".join(["", *(f"- {line}" for line, _ in sentences)])
    missed = [*findings.missed, *(wanted for _, wanted in sentences if wanted)]
    return Findings(f"{findings.tables}\n{bullets}", missed, figures)


def _line(name: str, length: int) -> str:
    return f"{name}, {length} tokens"


def _engine(name: str, length: int) -> Iterator[Side]:
    """One sequence at a time, without a server."""
    bundle = SHAPES[name].bundle(name)
    sequences = equal_lengths(length, 4, bundle.manifest.limits)
    for who in (FP32, INT8):
        rate = partial(Offline(bundle, who).tokens_per_s, sequences, 1, length)
        yield Side(_line(name, length), who, partial(_rate, rate), partial(rate, 0.1))


def _rate(rate: partial[float], seconds: float) -> dict[str, float]:
    return {"tokens_per_s": rate(seconds)}
