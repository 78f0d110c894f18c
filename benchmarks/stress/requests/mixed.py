"""Seeded requests of all protocols, with deadlines of 50 to 2,000 ms. Knows no server."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from addnorm.service.protocols.codec.safetensors_body import SAFETENSORS
from addnorm.service.runtime.manifest import Manifest
from benchmarks.stress.caller import Request
from benchmarks.stress.requests import texts
from benchmarks.stress.requests.bodies import (
    EMBEDDINGS,
    INFER,
    TOKENIZE,
    infer,
    long_integers,
    tensor,
    v2,
)

SHORTEST_MS, LONGEST_MS = 50, 2000
REQUEST_ID = "deadline-{}"


class Draw(NamedTuple):
    """What a request is made of."""

    manifest: Manifest
    draws: random.Random
    timeout_ms: int

    def row(self, least: int, most: int) -> list[int]:
        length = min(self.draws.randint(least, most), self.manifest.limits.max_positions)
        return self.draws.choices(range(self.manifest.limits.vocab_size), k=length)

    def rows(self, num: int, least: int, most: int) -> list[list[int]]:
        return [self.row(least, most) for _ in range(num)]

    def types(self, rows: list[list[int]]) -> dict[str, list[list[int]]]:
        """Token types of each row, for a model that has them."""
        if (num_types := self.manifest.limits.type_vocab_size) == 1:
            return {}
        kinds = range(num_types)
        return {"token_type_ids": [self.draws.choices(kinds, k=len(row)) for row in rows]}

    def infer(self, rows: list[list[int]], output: str, **more: Any) -> Request:
        chosen = self.draws.choice(list(self.manifest.precisions))
        return infer(
            self.manifest, {"input_ids": rows, "outputs": [output], "precision": chosen, **more}
        )

    def texts(self, path: str, field: str, values: list[Any], **more: Any) -> Request:
        return Request.json(path, {"model": self.manifest.name, field: values, **more})


def _small(draw: Draw) -> Request:
    rows = draw.rows(draw.draws.randint(1, 4), 1, 128)
    return draw.infer(rows, "pooled", **draw.types(rows))


def _logits(draw: Draw) -> Request:
    return draw.infer(draw.rows(1, 8, 200), "logits")


def _likeliest(draw: Draw) -> Request:
    """All of the vocabulary."""
    return draw.infer(
        draw.rows(1, 8, 128), "logits", logits={"top_k": draw.manifest.limits.vocab_size}
    )


def _hidden(draw: Draw) -> Request:
    return draw.infer(draw.rows(draw.draws.randint(1, 16), 1, 256), "activations")


def _v2(draw: Draw, output: bytes, binary: bool) -> Request:
    """Its deadline stands in the body."""
    num, length = draw.draws.randint(1, 8), min(64, draw.manifest.limits.max_positions)
    ids = b",".join(b"%d" % token for _ in range(num) for token in draw.row(length, length))
    parameters = {"timeout": 1000 * draw.timeout_ms, "binary_data_output": binary}
    rest = b',"outputs":[{"name":"%s"}],"parameters":%s' % (output, json.dumps(parameters).encode())
    return v2(draw.manifest, tensor("input_ids", [num, length], ids), rest=rest)


def _prose(draw: Draw) -> list[str]:
    draws = draw.draws
    return [
        texts.prose(draws.randint(1, 60), draws.getrandbits(30)) for _ in range(draws.randint(1, 8))
    ]


def _hopeless(draw: Draw) -> list[str]:
    return [texts.hopeless_words(draw.draws.randint(1, 60))] * draw.draws.randint(10, 900)


@dataclass(frozen=True)
class Kind:
    """One of the mix: how often it comes, and how it is made."""

    weight: int
    make: Callable[[Draw], Request]


KINDS = {
    "small": Kind(36, _small),
    "32 sequences": Kind(10, lambda draw: draw.infer(draw.rows(32, 1, 60), "pooled")),
    "8 sequences of 512": Kind(4, lambda draw: draw.infer(draw.rows(8, 512, 512), "pooled")),
    "hidden states": Kind(6, _hidden),
    "hidden states, gzip": Kind(4, lambda draw: _hidden(draw).having(accept_encoding="gzip")),
    "hidden states, safetensors": Kind(4, lambda draw: _hidden(draw).having(accept=SAFETENSORS)),
    "logits": Kind(5, _logits),
    "logits, gzip": Kind(4, lambda draw: _logits(draw).having(accept_encoding="gzip")),
    "top_k of the vocabulary": Kind(5, _likeliest),
    "V2, JSON": Kind(5, lambda draw: _v2(draw, b"activations", binary=False)),
    "V2, bytes": Kind(3, lambda draw: _v2(draw, b"logits", binary=True)),
    "embeddings of ids": Kind(3, lambda draw: draw.texts(EMBEDDINGS, "input", draw.rows(8, 1, 60))),
    "embeddings of texts": Kind(3, lambda draw: draw.texts(EMBEDDINGS, "input", _prose(draw))),
    "texts": Kind(3, lambda draw: draw.texts(INFER, "texts", _prose(draw), outputs=["pooled"])),
    "bad texts": Kind(
        1, lambda draw: draw.texts(INFER, "texts", _hopeless(draw), outputs=["pooled"])
    ),
    "tokenize": Kind(2, lambda draw: draw.texts(TOKENIZE, "texts", _prose(draw))),
    "tokenize bad texts": Kind(1, lambda draw: draw.texts(TOKENIZE, "texts", _hopeless(draw))),
    "integers of 4,299 digits": Kind(1, lambda draw: long_integers(4299, draw.manifest)),
}


class Sent(NamedTuple):
    """One request of the mix."""

    number: int
    kind: str
    timeout_ms: int
    request: Request


def mixed(manifest: Manifest, number: int, seed: int) -> Sent:
    """The same for the same seed, whoever sends it when."""
    draws = random.Random(f"{seed}/{number}")
    (kind,) = draws.choices(list(KINDS), [kind.weight for kind in KINDS.values()])
    timeout_ms = round(SHORTEST_MS * (LONGEST_MS / SHORTEST_MS) ** draws.random())
    headers = {"x-request-id": REQUEST_ID.format(number)}
    if not kind.startswith("V2"):
        headers["x-request-timeout-ms"] = str(timeout_ms)
    request = KINDS[kind].make(Draw(manifest, draws, timeout_ms))
    return Sent(number, kind, timeout_ms, request.having(**headers))
