"""A bundle's answers to texts, as Arrow columns of some kinds. Knows no files."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from addnorm.corpus.errors import CorpusError
from addnorm.service.asking.ask import Ask
from addnorm.service.asking.tasks.classification import probabilities
from addnorm.service.engine.manifest import InputType, Task
from addnorm.service.engine.model import Model
from addnorm.service.engine.outputs import Logits, Output, Pooled, Sparse, TokenVectors, Value
from addnorm.service.engine.outputs.output import Asked
from addnorm.service.engine.outputs.per_token import SomeTokenVectors

DType = Literal["float32", "float16", "int8"]


@dataclass(frozen=True)
class EmbedOptions:
    """None: as the model says. They mean what they mean to the server."""

    output: str = "pooled"  # a name of KINDS
    dtype: DType = "float32"
    precision: str | None = None
    prompt_name: str | None = None
    input_type: InputType | None = None
    dimensions: int | None = None
    top_k: int | None = None
    truncate: bool = False


class Kind(NamedTuple):
    """One kind of column."""

    task: Task  # that the model must be made for
    dtypes: tuple[DType, ...]
    column: Callable[[Ask], pa.Array]  # of what the output made of n texts
    options: tuple[str, ...] = ()  # that are for it alone

    def check(self, options: EmbedOptions) -> None:
        """CorpusError if an option is for another kind."""
        if options.dtype not in self.dtypes:
            raise CorpusError(
                f"dtype is {options.dtype}: of output {options.output} it is one of"
                f" {', '.join(self.dtypes)}"
            )
        for name, kind in KINDS.items():
            for option in kind.options:
                if getattr(options, option) is not None and option not in self.options:
                    raise CorpusError(
                        f"{option} is set, which is of output {name}, not of {options.output}"
                    )


def output(options: EmbedOptions, model: Model) -> Output[Value]:
    """The output to ask the server's pipeline for. `pooled` is what `/v1/embeddings` answers."""
    manifest = model.bundle.manifest
    match options.output:
        case "pooled":
            dtype: Literal["float32", "int8"] = "int8" if options.dtype == "int8" else "float32"
            return Pooled(None, manifest.normalize, options.dimensions, (dtype,))
        case "sparse":
            return Sparse(options.top_k)
        case "multi-vector":
            rules = manifest.input_types.get(options.input_type) if options.input_type else None
            skipped_ids = rules.skipped_ids if rules else None
            asked = Asked(normalize=manifest.normalize, skipped_ids=skipped_ids)
            return TokenVectors.asked_for(asked)
    return Logits()


def _entries(ask: Ask) -> pa.Array:
    vectors = ask.value(Sparse)
    parts = [_lists(vectors.indices, np.int32), _lists(vectors.values, np.float32)]
    return pa.StructArray.from_arrays(parts, ["indices", "values"])


def _token_vectors(ask: Ask) -> pa.Array:
    kind = TokenVectors if TokenVectors in ask.values else SomeTokenVectors
    made = ask.value(kind)
    return pa.ListArray.from_arrays(_offsets(made.rows), _lists_of_one_size(made.joined))


def _scores(ask: Ask) -> pa.Array:
    """`[n, labels]`, as `/v1/classify` and the routes for reranking give them."""
    is_multi_label = ask.model.bundle.manifest.multi_label
    logits = ask.value(Logits).joined
    return _lists_of_one_size(probabilities(logits, "sigmoid" if is_multi_label else None))


def _lists_of_one_size(values: NDArray[Any]) -> pa.Array:
    """`[n, w]`"""
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])


def _lists(rows: list[NDArray[Any]], dtype: Any) -> pa.Array:
    return pa.ListArray.from_arrays(
        _offsets(rows), pa.array(np.concatenate(rows).astype(dtype, copy=False))
    )


def _offsets(rows: Iterable[NDArray[Any]]) -> pa.Array:
    return pa.array(np.cumsum([0, *map(len, rows)]), pa.int32())


KINDS = {
    "pooled": Kind(
        "embed", ("float32", "float16", "int8"),
        lambda ask: _lists_of_one_size(ask.value(Pooled).joined), ("dimensions",),
    ),
    "sparse": Kind("sparse", ("float32",), _entries, ("top_k",)),
    "multi-vector": Kind("multi_vector", ("float32", "float16"), _token_vectors, ("input_type",)),
    "scores": Kind("classify", ("float32",), _scores),
}  # fmt: skip
