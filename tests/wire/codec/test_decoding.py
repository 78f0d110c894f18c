"""What is counted of bodies and texts is what Python holds of them."""

import gc
import random
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pytest
from safetensors.numpy import save
from starlette.datastructures import Headers

from addnorm.service.dialects.native.native_infer import INFER
from addnorm.service.engine.batch import from_lists
from addnorm.service.settings import Settings
from addnorm.service.wire.codec import safetensors_body
from addnorm.service.wire.codec.decoding import held_bytes, parsed_bytes
from addnorm.service.wire.codec.validation import fit, parse
from addnorm.service.wire.texts.texts import num_bytes

DRAWS = random.Random(0)


def grid(draw: Callable[[], int]) -> list[list[int]]:
    return [[draw() for _ in range(250)] for _ in range(100)]


def ones() -> list[list[int]]:
    return grid(lambda: 1)


BODIES: dict[str, Callable[[], dict[str, Any]]] = {
    "19 digits": lambda: {"input_ids": grid(lambda: DRAWS.randrange(10**18, 9 * 10**18))},
    "5 digits": lambda: {"input_ids": grid(lambda: DRAWS.randrange(10_000, 30_522))},
    "3 digits": lambda: {"input_ids": grid(lambda: DRAWS.randrange(300, 1000))},
    "1 digit": lambda: {"input_ids": ones()},
    "ids and a mask": lambda: {
        "input_ids": grid(lambda: DRAWS.randrange(30_522)),
        "attention_mask": ones(),
    },
    "prose": lambda: {"texts": ["A comma, and some forty characters beside it. " * 20] * 500},
}


@pytest.mark.parametrize("name", BODIES)
def test_a_parsed_body_counts_as_what_python_holds_of_it(name: str) -> None:
    body = orjson.dumps(BODIES[name]())
    gc.collect()
    tracemalloc.start()
    request = fit(INFER.request, parse(body, Settings()))
    batch = from_lists(request.input_ids, request.attention_mask) if request.input_ids else None
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert request.texts or batch
    assert 0.75 < (len(body) + held) / (len(body) + parsed_bytes(body)) < 1.3


def test_a_safetensors_body_counts_as_what_is_held_of_it() -> None:
    body = save({"input_ids": np.ones((100, 1000), np.int32)})
    gc.collect()
    tracemalloc.start()
    request = safetensors_body.read(body)
    _, held = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert request.arrays["input_ids"].dtype == np.int64
    counted = held_bytes(body, Headers({"content-type": safetensors_body.SAFETENSORS}))
    assert 0.95 < (len(body) + held) / counted < 1.05


def test_a_text_that_pairs_share_counts_once() -> None:
    query, documents = "a query " * 1000, [f"document {number}" for number in range(100)]
    counted = num_bytes([(query, document) for document in documents])
    assert counted == sys.getsizeof(query) + sum(map(sys.getsizeof, documents))
    assert num_bytes([query, *documents]) == counted
