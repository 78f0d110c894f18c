"""What the server computes of texts: LayerNorm statistics of each token, a vector of each text."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from addnorm.corpus.embedder import FOREVER_S, NO_LIMITS, TEXTS_AT_ONCE, joined, portions
from addnorm.corpus.in_process import opened
from addnorm.service.inference.outputs.per_token import NormStats
from addnorm.service.inference.outputs.pooled import Pooled
from addnorm.service.inference.request import InferenceRequest, InferenceResponse
from addnorm.service.models import registry
from addnorm.service.protocols.codec.texts import TextsToTokenize
from addnorm.service.runtime.batch import Batch, Floats, Ints, Padding, offsets_of
from addnorm.service.scheduling.cooperative import Steps
from addnorm.service.scheduling.deadline import Deadline
from addnorm.service.server.wiring import Service

TOKENS_AT_ONCE = 4096
FIRST_ORDINARY_ID = 999  # of BERT's vocabulary, below it: special and unused


@dataclass(frozen=True, eq=False)
class Measured:
    """Of n texts with t tokens in all."""

    tokens: Ints  # [t]
    offsets: Ints  # [n + 1], where each text begins
    norms: Floats  # [t, 2 * n_norms] the means, then rstd
    vectors: Floats  # [n, d_model] of length 1
    num_words: Ints  # [n]

    def __len__(self) -> int:
        return len(self.num_words)

    @property
    def lengths(self) -> Ints:
        return np.diff(self.offsets)

    @property
    def text_of_token(self) -> Ints:
        return np.repeat(np.arange(len(self)), self.lengths)

    def part(self, texts: Ints) -> "Measured":
        """Some of the texts."""
        chosen = [np.arange(self.offsets[text], self.offsets[text + 1]) for text in texts]
        tokens = np.concatenate(chosen)
        return Measured(
            self.tokens[tokens],
            offsets_of(self.lengths[texts]),
            self.norms[tokens],
            self.vectors[texts],
            self.num_words[texts],
        )

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, **vars(self))

    @classmethod
    def load(cls, path: Path) -> "Measured":
        with np.load(path) as arrays:
            return cls(**arrays)


class Model:
    """A bundle that takes texts, opened when it is first used. To be closed."""

    def __init__(self, bundle: Path) -> None:
        self._bundle = bundle
        self._opened: Service | None = None

    @property
    def _service(self) -> Service:
        if self._opened is None:
            self._opened = opened(self._bundle, cache_bytes=0, **NO_LIMITS)
        return self._opened

    @property
    def _model(self) -> registry.Model:
        (model,) = self._service.models.all()
        return model

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()

    def measured(self, texts: list[str]) -> Measured:
        return asyncio.run(self._texts(texts))

    def of_random_tokens(self, like: Measured, draws: np.random.Generator) -> Measured:
        """Texts of the same lengths. The tokens at their ends stay, the others are any."""
        tokens = like.tokens.copy()
        inside = np.ones(len(tokens), bool)
        inside[like.offsets[:-1]] = inside[like.offsets[1:] - 1] = False
        num_ids = self._model.bundle.manifest.limits.vocab_size
        tokens[inside] = draws.integers(FIRST_ORDINARY_ID, num_ids, inside.sum())
        return asyncio.run(self._batch(Batch(tokens, like.offsets), like.num_words))

    async def _texts(self, texts: list[str]) -> Measured:
        parts = []
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            some = texts[start : start + TEXTS_AT_ONCE]
            asked = TextsToTokenize.prompted("text", some, True, self._model, None)
            parts.append((await self._service.tools.texts.batch(asked, Deadline(FOREVER_S)))[0])
        return await self._batch(joined(parts), np.array([len(text.split()) for text in texts]))

    async def _batch(self, batch: Batch, num_words: Ints) -> Measured:
        """In portions of texts of similar lengths."""
        order = portions(batch.lengths, TOKENS_AT_ONCE)
        answers = [
            await self._answer(Batch.joined([(batch, index) for index in indices]))
            for indices in order
        ]
        places = np.argsort(np.concatenate(order), kind="stable")
        norms = [per_token for norms, _ in answers for per_token in norms]
        return Measured(
            batch.tokens,
            offsets_of(batch.lengths),
            np.concatenate([norms[place] for place in places]),
            np.concatenate([vectors for _, vectors in answers])[places],
            num_words,
        )

    async def _answer(self, batch: Batch) -> tuple[list[Floats], Floats]:
        """Of each text `[length, 2 * n_norms]`; vectors."""
        request = InferenceRequest(
            self._model,
            batch,
            Padding(batch.lengths, None),
            (NormStats(), Pooled(normalize=True)),
            "fp32",
            binary=True,
        )
        made, _ = await self._service.pipeline.run(request, _plain, Deadline(FOREVER_S))
        stats = made["norm_stats"]
        pairs = zip(stats["mean"], stats["rstd"], strict=True)
        return [np.concatenate(pair, axis=1) for pair in pairs], made["pooled"]


def _plain(response: InferenceResponse) -> Steps[dict[str, Any]]:
    yield
    return response.outputs
