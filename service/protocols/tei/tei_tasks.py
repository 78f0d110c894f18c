"""text-embeddings-inference's inference routes, which name no model: the task's default answers.

Source: its router/src/http/server.rs. Its statuses are not taken over: ours say more.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from pydantic import BaseModel

from addnorm.service.errors import EmptyInput
from addnorm.service.inference.outputs import Activations, Output, Pooled, Sparse
from addnorm.service.inference.request import InferenceRequest, InferenceResponse
from addnorm.service.protocols.codec.decoding import Decode, RawRequest, Tools
from addnorm.service.protocols.codec.negotiation import (
    JSON,
    Several,
    negotiated,
    require_json,
    written,
)
from addnorm.service.protocols.codec.openapi import DEADLINE, by_name, errors, json_body
from addnorm.service.protocols.codec.payload import Encode, Payload
from addnorm.service.protocols.codec.validation import Body
from addnorm.service.protocols.inference_route import Endpoint
from addnorm.service.protocols.tei.tei_schema import (
    TeiEmbedAllRequest,
    TeiEmbedRequest,
    TeiError,
    TeiPrediction,
    TeiPredictRequest,
    TeiRerankRequest,
    TeiSimilarityParameters,
    TeiSimilarityRequest,
    TeiSparseValue,
    error_body,
)
from addnorm.service.protocols.texts.sequences import OTHER_VOCABULARY, SequencesToRead
from addnorm.service.protocols.texts.task_options import ClassifyOptions
from addnorm.service.protocols.texts.text_tasks import TextTask, classify, score_pairs
from addnorm.service.protocols.texts.texts import TextsToTokenize
from addnorm.service.runtime.batch import Floats, Ints
from addnorm.service.runtime.manifest import Task
from addnorm.service.scheduling.cooperative import Steps
from addnorm.service.tasks.classification import Function, best
from addnorm.service.tasks.similarity import cosines

Decoded = tuple[InferenceRequest, Encode]
Shape = Callable[[InferenceResponse], Any]  # outputs -> the answer as JSON has it
FIELD = "inputs"
ENTRIES_AT_ONCE = 1024  # of a sparse vector
ENTRY_BYTES = 48  # of one as JSON, and as numbers until it is written


async def decode_embed(raw: RawRequest, tools: Tools) -> Decoded:
    asked = await _read(TeiEmbedRequest, raw, tools)
    output = Pooled(normalize=asked.normalize, dimensions=asked.dimensions)
    return await _of_sequences(asked, "embed", output, raw, tools)


async def decode_embed_all(raw: RawRequest, tools: Tools) -> Decoded:
    asked = await _read(TeiEmbedAllRequest, raw, tools)
    return await _of_sequences(asked, "embed", Activations(), raw, tools)


async def decode_embed_sparse(raw: RawRequest, tools: Tools) -> Decoded:
    asked = await _read(TeiEmbedAllRequest, raw, tools)
    request, encode = await _of_sequences(asked, "sparse", Sparse(), raw, tools, _vectors)
    num_entries = Sparse().max_entries(request.model.bundle, request.batch)
    return request._replace(answer_bytes=ENTRY_BYTES * num_entries), encode


def _vectors(response: InferenceResponse) -> Iterator[Any]:
    return (_entries(*vector) for vector in zip(*response.outputs["sparse"], strict=True))


def _entries(indices: Ints, values: Floats) -> Iterator[Any]:
    """A few at a time: each takes ten times its bytes until it is written."""
    for start in range(0, len(indices), ENTRIES_AT_ONCE):
        some = slice(start, start + ENTRIES_AT_ONCE)
        pairs = zip(indices[some].tolist(), values[some], strict=True)
        yield Several({"index": index, "value": value} for index, value in pairs)


async def decode_similarity(raw: RawRequest, tools: Tools) -> Decoded:
    asked = await _read(TeiSimilarityRequest, raw, tools)
    options = asked.parameters or TeiSimilarityParameters()
    sentences = asked.inputs.sentences
    if not sentences:
        raise EmptyInput("inputs.sentences is empty: send at least one text", param=FIELD)
    model = raw.model(tools.models, None, "embed")
    # the source last, so that an error's index is the sentence's
    texts = TextsToTokenize.prompted(
        "inputs.sentences",
        [*sentences, asked.inputs.source_sentence],
        options.cuts,
        model,
        options.prompt_name,
    )._replace(left=options.left)
    batch, padding = await tools.texts.batch(texts, raw.deadline)
    request = InferenceRequest(model, batch, padding, (Pooled(normalize=True),), field=FIELD)

    def shape(response: InferenceResponse) -> Any:
        *others, source = response.outputs["pooled"]
        return cosines(source, others)

    return request, partial(_encode, shape, _num_characters(texts))


async def decode_predict(raw: RawRequest, tools: Tools) -> Decoded:
    asked = await _read(TeiPredictRequest, raw, tools)
    model = raw.model(tools.models, None, "classify")
    texts = TextsToTokenize(FIELD, asked.inputs.texts, asked.cuts, model, left=asked.left)
    options = ClassifyOptions(function_to_apply="none" if asked.raw_scores else None)
    task = await classify(raw, tools, texts, options)

    def shape(response: InferenceResponse) -> Any:
        results = task.finish(response)
        return results if asked.inputs.is_batch else next(results)

    return task.request, partial(_encode, shape, _num_characters(texts))


async def rerank(asked: TeiRerankRequest, raw: RawRequest, tools: Tools) -> Decoded:
    """Of a body that is known to be in this dialect."""
    model = raw.model(tools.models, None, "rerank")
    pairs = [(asked.query, text) for text in asked.texts]
    texts = TextsToTokenize("texts", pairs, asked.cuts, model, left=asked.left)
    function: Function = "none" if asked.raw_scores else "sigmoid"
    sent_back = len(raw.body) if asked.return_text else 0
    task = await score_pairs(raw, tools, texts, function, answer_bytes=sent_back)
    return task.request, partial(_encode, partial(_ranks, asked, task), _num_characters(texts))


def _ranks(asked: TeiRerankRequest, task: TextTask, response: InferenceResponse) -> Any:
    scores = list(task.finish(response))
    return [
        {
            "index": index,
            **({"text": asked.texts[index]} if asked.return_text else {}),
            "score": scores[index],
        }
        for index in best(scores)
    ]


async def _read(model: type[Body], raw: RawRequest, tools: Tools) -> Body:
    require_json(raw.headers)
    negotiated(raw.headers, (JSON,))
    return await tools.bodies.read_json(model, raw.body, raw.deadline)


async def _of_sequences(
    asked: TeiEmbedAllRequest,
    task: Task,
    output: Output,
    raw: RawRequest,
    tools: Tools,
    shape: Shape | None = None,
) -> Decoded:
    """One output of texts or ids. shape: by default it is the answer as it is."""
    model = raw.model(tools.models, None, task)
    are_texts = isinstance(next(iter(asked.inputs), None), str)
    cuts = asked.cuts if are_texts else bool(asked.truncate)
    sent = SequencesToRead(FIELD, asked.inputs, cuts, model, asked.prompt_name, asked.left)
    batch, padding = await sent.batch(raw, tools)
    request = InferenceRequest(model, batch, padding, (output,), field=FIELD, hint=OTHER_VOCABULARY)
    shape = shape or partial(_as_it_is, output.name)
    return request, partial(_encode, shape, sum(map(len, asked.inputs)))


def _as_it_is(name: str, response: InferenceResponse) -> Any:
    return response.outputs[name]


def _num_characters(texts: TextsToTokenize) -> int:
    return sum(texts.sizes())


def _encode(shape: Shape, num_characters: int, response: InferenceResponse) -> Steps[Payload]:
    """num_characters: of the request; ids count as one each."""
    yield
    parts = yield from written(shape(response), response.num_bytes)
    return Payload(parts, times=partial(_times, response.request, num_characters))


def _times(
    request: InferenceRequest, num_characters: int, stages_s: Mapping[str, float]
) -> dict[str, str]:
    """Milliseconds, as text-embeddings-inference tells them."""
    total_s = sum(stages_s.values())
    times_s = {
        "x-compute-time": total_s,
        "x-total-time": total_s,
        "x-tokenization-time": stages_s["decode"],
        "x-queue-time": stages_s["queue"],
        "x-inference-time": stages_s["infer"],
    }
    return {
        "x-compute-type": request.model.engine(request.precision).provider,
        "x-compute-characters": str(num_characters),
        "x-compute-tokens": str(request.batch.num_tokens),
        **{name: str(round(seconds * 1000)) for name, seconds in times_s.items()},
    }


TEXTS = {"inputs": ["Pads are dropped.", "Pads come back as zeros."]}
SENTENCES = {"source_sentence": "Pads are dropped.", "sentences": ["Pads come back as zeros."]}


def _endpoint(
    path: str, decode: Decode, summary: str, body: type[BaseModel], answer: Any, example: Any
) -> Endpoint:
    return Endpoint(
        path,
        decode,
        {
            "name": f"tei_{path.removeprefix('/')}",
            "summary": f"{summary}, as text-embeddings-inference answers",
            "response_model": answer,
            "responses": errors(TeiError, error_body),
            "openapi_extra": json_body(body, {"texts": example}) | DEADLINE,
            "generate_unique_id_function": by_name,
        },
    )


ENDPOINTS = (
    _endpoint(
        "/embed", decode_embed, "Vectors of texts", TeiEmbedRequest, list[list[float]], TEXTS
    ),
    _endpoint(
        "/embed_all",
        decode_embed_all,
        "A vector for each token of texts",
        TeiEmbedAllRequest,
        list[list[list[float]]],
        TEXTS,
    ),
    _endpoint(
        "/embed_sparse",
        decode_embed_sparse,
        "Sparse vectors of texts",
        TeiEmbedAllRequest,
        list[list[TeiSparseValue]],
        TEXTS,
    ),
    _endpoint(
        "/similarity",
        decode_similarity,
        "How alike texts are",
        TeiSimilarityRequest,
        list[float],
        {"inputs": SENTENCES},
    ),
    _endpoint(
        "/predict",
        decode_predict,
        "Labels of texts, and of pairs of texts",
        TeiPredictRequest,
        list[TeiPrediction] | list[list[TeiPrediction]],
        {"inputs": [["Pads are dropped."], ["Pads are dropped.", "They cost nothing."]]},
    ),
)
