"""The servers of each model: Addnorm, another checkout of it, and those of others."""

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from addnorm.load.options import NAIVE_TOLERANCE
from addnorm.load.servers import Server
from addnorm.load.stream import PROFILES, Request, Stream, log_normal_lengths, make
from addnorm.service.engine.bundle import Bundle
from benchmarks import peers, processes
from benchmarks.contender import FP32, INT8, NAIVE, Contender, Contenders, in_precision
from benchmarks.data.texts import words_of
from benchmarks.findings import MINILM, newest
from benchmarks.tables import BEFORE

NUM_REQUESTS = 64  # distinct ones
PATH = "/v1/embeddings"
ONE_THREAD, TYPED, READY, INFINITY = "naive-1", "typed", "ready", "infinity"
TENSORS = {FP32: "fp32-tensors", INT8: "int8-tensors"}  # whose answers are safetensors
# Another checkout may round otherwise, or quantize in another way, which changes single values by
# more than 0.1. So its answers are checked coarsely.
TOLERANCE = {FP32: NAIVE_TOLERANCE, INT8: 1.0}
FLAGS = {NAIVE: (), ONE_THREAD: ("one-thread",), TYPED: ("typed",)}


def streams(bundle: Bundle, fields: dict[str, Any], seed: int = 0) -> dict[str, Stream]:
    """`texts` and `ids`: requests of equal sequences, with lengths as in the profile `small`.

    fields: of each body (model, precision).
    """
    texts = _texts(bundle, seed)
    tokenizer = Tokenizer.from_file(str(bundle.path / "tokenizer.json"))
    tokenizer.no_padding()
    ids = [
        [np.array(encoding.ids, np.int64) for encoding in tokenizer.encode_batch(of_request)]
        for of_request in texts
    ]
    sent = {"texts": texts, "ids": [[s.tolist() for s in sequences] for sequences in ids]}
    return {
        name: Stream(
            [
                Request(
                    tuple(sequences), "embedding", json.dumps({**fields, "input": values}).encode()
                )
                for sequences, values in zip(ids, inputs, strict=True)
            ],
            seed,
            path=PATH,
        )
        for name, inputs in sent.items()
    }


def _texts(bundle: Bundle, seed: int) -> list[list[str]]:
    """The texts of each request. Each word is one token, so that a text is as long as it was
    drawn."""
    draws, words = np.random.default_rng(seed), words_of(bundle.path)
    small = PROFILES["small"]
    longest = min(small.max_length, bundle.manifest.limits.max_text_tokens - 2)  # [CLS] and [SEP]
    profile = replace(small, max_length=longest)
    nums = draws.integers(small.min_sequences, small.max_sequences, NUM_REQUESTS, endpoint=True)
    return [
        [" ".join(draws.choice(words, n)) for n in log_normal_lengths(profile, int(num), draws)]
        for num in nums
    ]


@dataclass(frozen=True)
class Servers:
    """Starts servers when they are first asked; they end with the stack.

    beside: another checkout of Addnorm, with its own exports of the same models.
    """

    stack: ExitStack
    beside: Path | None = None

    def preset(self, bundle: Bundle, padded: Bundle) -> Contenders:
        """padded: the same model in the layout that the naive server needs."""
        if bundle.manifest.source != padded.manifest.source:  # the ratios would say nothing
            raise SystemExit(f"{bundle.path} and {padded.path} are of different models")
        contenders = self._addnorm(bundle)
        near = contenders[FP32].reference.with_tolerance(NAIVE_TOLERANCE)
        naive = [
            Contender(name, self._lazy(peers.naive(padded, *flags)), near, bundle)
            for name, flags in FLAGS.items()
        ]
        accept = ("Accept: application/vnd.safetensors",)
        tensors = [
            replace(contenders[name], name=tensor_name, headers=accept, streams={})
            for name, tensor_name in TENSORS.items()
            if name in contenders
        ]
        return {**_by_name(naive), **contenders, **_by_name(tensors)}

    def tiny(self, bundle: Bundle) -> Contenders:
        """Addnorm over a model that costs almost nothing, and HTTP alone with the same answer."""
        contenders = self._addnorm(bundle)

        @cache
        def ready() -> Server:
            body = make(PROFILES["same"], bundle.manifest.limits).requests[0].body
            return self.stack.enter_context(peers.ready_made(contenders[FP32].serve().ask(body)))

        return {READY: Contender(READY, ready, contenders[FP32].reference, bundle), **contenders}

    def real(self, bundle: Bundle) -> Contenders:
        """Contenders for a bundle with a tokenizer; Infinity is one of them if it is installed."""
        contenders = {
            name: replace(contender, make_stream=_streams_of(bundle))
            for name, contender in self._addnorm(bundle).items()
        }
        if not peers.INFINITY.exists():
            return contenders
        server = self._lazy(peers.infinity(MINILM, bundle.manifest.name))
        near = contenders[FP32].reference.with_tolerance(NAIVE_TOLERANCE)
        peer = Contender(INFINITY, server, near, bundle, make_stream=_streams_of(bundle))
        return {INFINITY: peer, **contenders}

    def _addnorm(self, bundle: Bundle) -> Contenders:
        """This checkout's server in each precision of the bundle, then the other checkout's."""
        server = self._lazy(processes.addnorm(bundle))
        contenders = [
            in_precision(server, bundle, precision) for precision in bundle.manifest.precisions
        ]
        if self.beside:
            other_bundle = newest(bundle.manifest.name, self.beside / "bundles")
            before = self._lazy(processes.serving([other_bundle], self.beside.resolve()))
            contenders += [
                replace(
                    contender,
                    name=f"{BEFORE}{contender.name}",
                    serve=before,
                    reference=contender.reference.with_tolerance(TOLERANCE[contender.name]),
                    streams={},
                )
                for contender in contenders
            ]
        return _by_name(contenders)

    def _lazy(self, server: AbstractContextManager[Server]) -> Callable[[], Server]:
        return cache(lambda: self.stack.enter_context(server))


def _streams_of(bundle: Bundle) -> Callable[[str, Mapping[str, str]], Stream]:
    def make_stream(traffic: str, fields: Mapping[str, str]) -> Stream:
        return streams(bundle, {"model": bundle.manifest.name, **fields})[traffic]

    return make_stream


def _by_name(contenders: list[Contender]) -> Contenders:
    return {contender.name: contender for contender in contenders}
