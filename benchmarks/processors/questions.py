"""Questions to every processor about a bundle: all outputs, ragged and alone, of ids and of texts.

Knows the server alone: arm64's environment has nothing else.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, get_args

from addnorm.service.engine import bundle as bundles
from addnorm.service.engine import selfcheck
from addnorm.service.engine.batch import Batch
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.manifest import Pooling, Task
from addnorm.service.engine.outputs import OUTPUTS
from addnorm.service.engine.outputs.values import VectorDType

# above 16 keys the sums of some kernels have as many lanes as the processor
LENGTHS = (2, 17, 65, 1, 129, 33)
ALONE = (0, 1, 2)  # of these
INFER = "/v1/infer"
TEXTS = (
    "How do I reset my password?",
    "The train to Berlin leaves at nine.",
    "",
    "Pads are dropped when a request is read, and come back as zeros in the response: what is"
    " computed together is of similar length, and nobody waits for the padding of others.",
)
PAIR = [TEXTS[0], TEXTS[1]]
MASKED = "The train to [MASK] leaves at [MASK]."
LONG = " ".join(8 * [TEXTS[3]])  # read in windows
OF_LONG_TEXTS: dict[Task, dict[str, Any]] = {
    "embed": {"input": [LONG]},
    "rerank": {"query": TEXTS[0], "documents": [LONG]},
    "classify": {"texts": [LONG]},
}
OF_TASKS: dict[Task, tuple[str, dict[str, Any]]] = {
    "embed": ("/v1/embeddings", {"input": [*TEXTS]}),
    "rerank": ("/v2/rerank", {"query": TEXTS[0], "documents": [*TEXTS]}),
    "classify": ("/v1/classify", {"texts": [*TEXTS, PAIR]}),
    "tag": ("/v1/tag", {"texts": [*TEXTS]}),
    "fill_mask": ("/v1/fill-mask", {"texts": [MASKED], "top_k": 20}),
    "sparse": (INFER, {"texts": [*TEXTS], "outputs": ["sparse"], "sparse": {"top_k": 100}}),
    "complete": (
        "/v1/completions",
        {"prompt": TEXTS[3], "max_tokens": 0, "echo": True, "logprobs": 5},
    ),
}


class Question(NamedTuple):
    """name: of the file that the answer goes to."""

    name: str
    path: str
    body: dict[str, Any]


def ragged(precision: str) -> str:
    """The name of the question with all sequences."""
    return f"{precision}-ragged"


def alone(precision: str, index: int) -> str:
    """The name of the question with one of these sequences."""
    return f"{precision}-alone-{index}"


def questions(bundle: Bundle) -> Iterator[Question]:
    for precision in bundle.manifest.precisions:
        yield from _of_ids(bundle, precision)
        if bundles.TOKENIZER in bundle.manifest.files:
            yield from _of_texts(bundle, precision)


def _of_ids(bundle: Bundle, precision: str) -> Iterator[Question]:
    batch = selfcheck.sequences(bundle.manifest.limits, LENGTHS)
    kinds = OUTPUTS.of(bundle)
    outputs = [name for name in kinds if precision == "fp32" or not kinds[name].is_of_lens]
    options = {name: kinds[name].compared_options(bundle, batch.num_tokens) for name in outputs}
    fields = {"outputs": outputs, **{name: value for name, value in options.items() if value}}
    yield _question(bundle, precision, ragged(precision), INFER, {**_ids(batch), **fields})
    for index in ALONE:
        body = {**_ids(batch.sequence(index)), **fields}
        yield _question(bundle, precision, alone(precision, index), INFER, body)
    if "pooled" in outputs and "pooled" not in bundle.manifest.heads:
        short_batch = selfcheck.sequences(bundle.manifest.limits, LENGTHS[:3])
        pooled = {**_ids(short_batch), "outputs": ["pooled"], "normalize": True}
        for pooling in get_args(Pooling):
            name, body = f"{precision}-pooled-{pooling}", {**pooled, "pooling": pooling}
            yield _question(bundle, precision, name, INFER, body)


def _ids(batch: Batch) -> dict[str, Any]:
    """Fields of a body of /v1/infer."""
    rows = [batch.sequence(index) for index in range(len(batch))]
    types = {} if batch.types is None else {"token_type_ids": [_list(row.types) for row in rows]}
    return {"input_ids": [_list(row.tokens) for row in rows], **types}


def _list(values: Any) -> list[int]:
    return values.tolist()  # type: ignore[no-any-return]


def _of_texts(bundle: Bundle, precision: str) -> Iterator[Question]:
    for task in bundle.tasks:
        if task in OF_TASKS:
            path, body = OF_TASKS[task]
            yield _question(bundle, precision, f"{precision}-{task}", path, body)
        if task in OF_LONG_TEXTS:
            body = {**OF_LONG_TEXTS[task], "windows": {"overlap": 4}}
            yield _question(bundle, precision, f"{precision}-{task}-windows", path, body)
    if bundle.manifest.vector_ranges is not None:
        normalize = bundle.manifest.normalize  # as the vectors whose ranges were measured
        for dtype in get_args(VectorDType):
            fields = {"texts": [*TEXTS], "outputs": ["pooled"], "normalize": normalize}
            body = {**fields, "dtype": dtype}
            yield _question(bundle, precision, f"{precision}-vectors-{dtype}", INFER, body)


def _question(
    bundle: Bundle, precision: str, name: str, path: str, body: dict[str, Any]
) -> Question:
    """The body with its model and precision."""
    return Question(name, path, {"model": bundle.ref, "precision": precision, **body})
