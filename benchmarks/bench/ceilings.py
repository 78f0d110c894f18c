"""Two ceilings: the engine without a server, and matrix products without a model."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from addnorm.service.engine.batch import Batch, Ints
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.engine import Engine
from addnorm.service.engine.manifest import Limits

SGEMM_ROWS = 256


class Offline:
    """The engine in this process, loaded at first use."""

    def __init__(self, bundle: Bundle, precision: str) -> None:
        self._bundle, self._precision = bundle, precision

    @cached_property
    def _engine(self) -> Engine:
        return Engine(self._bundle, self._precision)

    def tokens_per_s(
        self, sequences: list[Ints], num_workers: int, token_budget: int, seconds: float
    ) -> float:
        """Over the sequences in the best order: all known, sorted by length."""
        engine, batches = self._engine, sorted_batches(sequences, token_budget)
        runs, wall_s = _together(
            lambda i: engine.run(batches[i % len(batches)]), num_workers, seconds
        )
        rounds, part = divmod(runs, len(batches))
        num_tokens = [batch.num_tokens for batch in batches]
        return (rounds * sum(num_tokens) + sum(num_tokens[:part])) / wall_s


def equal_lengths(length: int, num: int, limits: Limits) -> list[Ints]:
    """So many seeded sequences of one length, or of the model's longest."""
    shape = (num, min(length, limits.max_positions))
    return list(np.random.default_rng(length).integers(0, limits.vocab_size, shape))


def sorted_batches(sequences: list[Ints], token_budget: int) -> list[Batch]:
    """Longest first: what is short fills the workers at the end."""
    micro: list[list[Ints]] = [[]]
    for sequence in sorted(sequences, key=len, reverse=True):
        if micro[-1] and sum(map(len, micro[-1])) + len(sequence) > token_budget:
            micro.append([])
        micro[-1].append(sequence)
    return [Batch.of(sequences) for sequences in micro]


def _together(run: Callable[[int], Any], num_workers: int, seconds: float) -> tuple[int, float]:
    """Calls run(0), run(1), ... from so many threads for so long -> calls made, seconds taken."""
    numbers = iter(range(10**9))
    started = time.monotonic()

    def worker(_: int) -> int:
        count = 0
        while time.monotonic() < started + seconds:
            run(next(numbers))
            count += 1
        return count

    with ThreadPoolExecutor(num_workers) as worker_threads:
        calls = sum(worker_threads.map(worker, range(num_workers)))
    return calls, time.monotonic() - started


def matrix_flops_per_token(config: dict[str, Any]) -> int:
    """Floating-point operations of the model's weight matrices for one token.

    Attention over other tokens is left out: it depends on lengths, and is small at these.
    """
    d_model, d_ff = config["d_model"], config["d_ff"]
    return int(2 * config["n_layers"] * (4 * d_model * d_model + 2 * d_model * d_ff))


class Sgemm:
    """onnxruntime's MatMul alone, at the shape of the model's largest matrix."""

    def __init__(self, config: dict[str, Any], num_workers: int) -> None:
        self._num_workers = num_workers
        self._flops_per_token = matrix_flops_per_token(config)
        d_model, d_ff = int(config["d_model"]), int(config["d_ff"])
        self._flops_per_run = 2 * SGEMM_ROWS * d_model * d_ff
        self._rows = np.random.default_rng(0).standard_normal((SGEMM_ROWS, d_model), np.float32)
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = ort.InferenceSession(_matmul(d_model, d_ff), options)

    def tokens_per_s(self, seconds: float) -> float:
        """Tokens whose matrices the processor could multiply, were there nothing else to do."""
        runs, wall_s = _together(
            lambda _: self._session.run(None, {"x": self._rows}), self._num_workers, seconds
        )
        return runs * self._flops_per_run / wall_s / self._flops_per_token


def _matmul(d_in: int, d_out: int) -> bytes:
    weight = np.random.default_rng(1).standard_normal((d_in, d_out), np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "sgemm",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", d_in])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", d_out])],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    assert isinstance(model, onnx.ModelProto)
    return bytes(model.SerializeToString())
