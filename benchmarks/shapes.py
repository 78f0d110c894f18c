"""Costs of models in the shapes of their published ones, with random weights: MiB of files, and
texts per second of the engine alone."""

import os
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from addnorm.export import sources
from addnorm.export.wishes import Wishes
from addnorm.export.writer import write_uncertified
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.bundle import Bundle
from benchmarks.bench.ceilings import Offline, equal_lengths
from benchmarks.contender import FP32, INT8
from benchmarks.findings import Findings, Options
from benchmarks.tables import short, table

SEED = 0
LENGTHS = (32, 256)  # tokens of a text


@dataclass(frozen=True)
class Shape:
    """A model of transformers with random weights. fields: of its configuration, beside the
    defaults."""

    family: str  # the beginning of its classes' names
    max_length: int
    fields: Mapping[str, Any] = field(default_factory=dict)

    def graphs(self, folder: Path) -> Bundle:
        """Made by the present code, without a certificate: no server loads them."""
        self.write(folder / "checkpoint")
        wishes = Wishes(precisions=(FP32, INT8), max_length=self.max_length)
        source = sources.checkpoint(folder / "checkpoint", wishes)
        write_uncertified(replace(source, originals=()), folder, "shape", 1)
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
}  # fmt: skip


def run(options: Options) -> Findings:
    """The cost of each shape: MiB of its files, and texts per second of the engine on all cores."""
    figures = dict[str, dict[str, float]]()
    for name, shape in SHAPES.items():
        if options.wants(name):
            with TemporaryDirectory() as folder:
                figures[name] = _cost(shape.graphs(Path(folder)), options)
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
