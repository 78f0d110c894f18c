"""The same sequences as texts and as token ids, for /v1/embeddings. Knows no server."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from addnorm.load.stream import PROFILES, Request, Stream, log_normal_lengths
from addnorm.service.runtime.batch import Ints
from addnorm.service.runtime.bundle import Bundle
from benchmarks.data.texts import words_of

NUM_REQUESTS = 64  # distinct ones
PATH = "/v1/embeddings"


def streams(bundle: Bundle, fields: dict[str, Any], seed: int = 0) -> dict[str, Stream]:
    """`texts` and `ids`: requests of equal sequences, with lengths as in the profile `small`.

    fields: of each body (model, precision).
    """
    texts = _texts(bundle, seed)
    ids = [_tokenize(bundle, of_request) for of_request in texts]
    sent = {"texts": texts, "ids": [[s.tolist() for s in sequences] for sequences in ids]}
    return {
        name: Stream(
            [
                Request(
                    tuple(sequences), "embedding", json.dumps({**fields, "input": own}).encode()
                )
                for sequences, own in zip(ids, inputs, strict=True)
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


def _tokenize(bundle: Bundle, texts: list[str]) -> list[Ints]:
    """Token ids of each text as the server makes them."""
    tokenizer = Tokenizer.from_file(str(bundle.path / "tokenizer.json"))
    tokenizer.no_padding()
    return [np.array(encoding.ids, np.int64) for encoding in tokenizer.encode_batch(texts)]
