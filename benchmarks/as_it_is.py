"""Modules that are served as they are, beside the recognized path of the same module, and beside a
server that most people would write around the same graph: token ids, float vectors, and classifiers
of transformers that have no graph of ours."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from addnorm.export import export_bundle
from addnorm.load.options import NAIVE_TOLERANCE
from addnorm.load.run import Reference, compute_alone
from addnorm.load.stream import Request, Stream
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.selfcheck import sequences
from benchmarks import comparison, peers, processes
from benchmarks.contender import NAIVE, Contender, Contenders, Line
from benchmarks.findings import Findings, Options
from benchmarks.rounds import Rounds, Side, sides_of
from benchmarks.tables import Row

VOCAB, WIDTH, D, LONGEST = 30_522, 12, 384, 128  # WIDTH: of vectors, as a series of 12 features
RECOGNIZED, AS_IT_IS = "recognized", "as it is"
TITLES = {NAIVE: "naive, the same graph", RECOGNIZED: "recognized", AS_IT_IS: "as it is"}
NUM_REQUESTS = 12  # distinct ones
SIZES = {
    "vocab_size": VOCAB, "hidden_size": D, "intermediate_size": 4 * D, "num_hidden_layers": 6,
    "num_attention_heads": 12, "max_position_embeddings": LONGEST, "pad_token_id": 0,
}  # fmt: skip
CLASSES: dict[str, dict[str, Any]] = {  # of transformers, with their further sizes
    "Qwen2": {"num_key_value_heads": 4},
    "MegatronBert": {"type_vocab_size": 1},
    "RoFormer": {"type_vocab_size": 1, "embedding_size": D},
}
LENGTHS: dict[str, Callable[[np.random.Generator], list[int]]] = {  # of a request's sequences
    "64 of 39 lengths": lambda draws: draws.permutation(
        [*range(5, 44), *draws.integers(5, 44, 25)]
    ).tolist(),
    "32 of one length": lambda _: [32] * 32,
    "8 mixed": lambda draws: draws.lognormal(3.2, 0.6, 8).clip(1, LONGEST).astype(int).tolist(),
}


class Encoder(nn.Module):
    """MiniLM's shape around PyTorch's own layers; its answer is the mean of all rows."""

    def __init__(self, tokens: nn.Module) -> None:
        super().__init__()
        self.tokens, self.places = tokens, nn.Embedding(LONGEST, D)
        layer = nn.TransformerEncoderLayer(D, 12, 4 * D, activation="gelu", batch_first=True)
        self.body = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        answer: Tensor = self.body(x).mean(1)
        return answer


def run(options: Options) -> Findings:
    figures, rows = Rounds(), list[Row]()
    with ExitStack() as stack:
        root, sides = Path(stack.enter_context(TemporaryDirectory())), list[Side]()
        modules: dict[str, Callable[[], nn.Module]] = {
            "ids": lambda: Encoder(nn.Embedding(VOCAB, D)),
            "vectors": lambda: Encoder(nn.Linear(WIDTH, D)),
            **{name: partial(_classifier, name) for name in CLASSES},
        }
        for kind, make in modules.items():
            lines = {f"{kind}: {load}": Line(load, 8, tuple(TITLES)) for load in LENGTHS}
            if not any(options.wants(line) for line in lines):
                continue
            rows += [Row(line, of, line) for line in lines for of in ("tokens_per_s", "p99_ms")]
            sides += sides_of(_contenders(make().eval(), kind, root, stack), lines)
        figures = comparison.measure(sides, options)
    return comparison.compare(figures, rows, TITLES)


def _classifier(name: str) -> nn.Module:
    """A class of transformers with random weights, three labels and MiniLM's shape."""
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SIZES, **CLASSES[name], num_labels=3)
    model: nn.Module = getattr(transformers, f"{name}ForSequenceClassification")(config)
    return model


def _contenders(module: nn.Module, kind: str, root: Path, stack: ExitStack) -> Contenders:
    """kind: "ids" alone is recognized, "vectors" takes them in place of ids."""
    config = None if kind in CLASSES else {"max_positions": LONGEST}
    if kind == "vectors":
        config = {"max_positions": LONGEST, "input_width": WIDTH}
    plain_bundle = export_bundle(module, root, f"{kind}-as-it-is", as_it_is=True, config=config)
    servers = {
        NAIVE: (plain_bundle, peers.naive(plain_bundle, "as-it-is")),
        AS_IT_IS: (plain_bundle, processes.addnorm(plain_bundle)),
    }
    if kind == "ids":
        recognized = export_bundle(module, root, "recognized", as_it_is=False)
        servers[RECOGNIZED] = recognized, processes.addnorm(recognized)
    return {
        who: Contender(
            who,
            cache(partial(stack.enter_context, server)),
            Reference(compute_alone(bundle, "fp32"), NAIVE_TOLERANCE if who == NAIVE else None),
            bundle,
            make_stream=partial(_stream, bundle),
        )
        for who, (bundle, server) in servers.items()
    }


def _stream(bundle: Bundle, load: str, fields: Mapping[str, str]) -> Stream:
    tensors = bundle.manifest.as_it_is
    output = tensors[0].output if tensors else "pooled"
    draws = np.random.default_rng(0)
    requests = [
        Request.encode(
            tuple(drawn.sequence(index).tokens for index in range(len(drawn))),
            output,
            {"model": bundle.manifest.name, **fields},
        )
        for seed in range(NUM_REQUESTS)
        for drawn in [sequences(bundle.manifest.limits, LENGTHS[load](draws), seed)]
    ]
    return Stream(requests, 0)
