"""text-embeddings-inference's inference routes. Its clients name no model: the task's default
answers.

Source: its router/src/http/server.rs. Its statuses are not taken over: ours say more.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from addnorm.service.errors import EmptyInput
from addnorm.service.engine.outputs import Activations, Output, Pooled, Sparse, Value
from addnorm.service.asking.request import InferenceRequest, InferenceResponse
from addnorm.service.asking.request_path import Call
from addnorm.service.protocols.codec.decoding import Tools
from addnorm.service.protocols.codec.negotiation import Several
from addnorm.service.protocols.route import Decoded, Route
from addnorm.service.protocols.tei.tei_schema import (
    TeiEmbedAllRequest,
    TeiEmbedRequest,
    TeiPredictRequest,
    TeiRerankRequest,
    TeiSimilarityParameters,
    TeiSimilarityRequest,
)
from addnorm.service.protocols.texts.json_answers import (
    JsonAnswer,
    Ranking,
    compared,
    embedded,
    ranked,
)
from addnorm.service.protocols.texts.places import query_with, source_or_sentence
from addnorm.service.protocols.texts.sequences import OTHER_VOCABULARY, SequencesToRead
from addnorm.service.protocols.texts.task_options import ClassifyOptions
from addnorm.service.protocols.texts.text_tasks import classify, score_pairs
from addnorm.service.protocols.texts.texts import TextsToTokenize
from addnorm.service.protocols.texts.truncation import cuts, cuts_sequences
from addnorm.service.runtime.batch import Floats, Ints
from addnorm.service.runtime.manifest import Task
from addnorm.service.tasks.classification import Function

Shaped = tuple[InferenceRequest, JsonAnswer]
FIELD = "inputs"
ENTRIES_AT_ONCE = 1024  # of a sparse vector
ENTRY_BYTES = 48  # of one as JSON, and as numbers until it is written


async def embed(asked: TeiEmbedRequest, call: Call, tools: Tools) -> Shaped:
    output = Pooled(normalize=asked.normalize, dimensions=asked.dimensions)
    return await _of_sequences(
        asked, "embed", output, call, tools, embedded(lambda response, vectors: vectors)
    )


async def embed_all(asked: TeiEmbedAllRequest, call: Call, tools: Tools) -> Decoded:
    return await _of_sequences(
        asked,
        "embed",
        Activations(),
        call,
        tools,
        JsonAnswer(lambda response: response.value(Activations).for_json()),
    )


async def embed_sparse(asked: TeiEmbedAllRequest, call: Call, tools: Tools) -> Shaped:
    request, encode = await _of_sequences(
        asked, "sparse", Sparse(), call, tools, JsonAnswer(_vectors)
    )
    num_entries = Sparse().max_entries(request.model.bundle, request.batch)
    return request._replace(answer_bytes=ENTRY_BYTES * num_entries), encode


def _vectors(response: InferenceResponse) -> Iterator[Any]:
    vectors = response.value(Sparse)
    return map(_entries, vectors.indices, vectors.values)


def _entries(indices: Ints, values: Floats) -> Iterator[Any]:
    """A few at a time: each takes ten times its bytes until it is written."""
    for start in range(0, len(indices), ENTRIES_AT_ONCE):
        some = slice(start, start + ENTRIES_AT_ONCE)
        pairs = zip(indices[some].tolist(), values[some], strict=True)
        yield Several({"index": index, "value": value} for index, value in pairs)


async def similarity(asked: TeiSimilarityRequest, call: Call, tools: Tools) -> Decoded:
    options = asked.parameters or TeiSimilarityParameters()
    sentences = asked.inputs.sentences
    if not sentences:
        raise EmptyInput("inputs.sentences is empty: send at least one text", param=FIELD)
    model, prompt_name = call.model_and_prompt(
        tools.models, asked.model, options.prompt_name, "embed"
    )
    texts = TextsToTokenize.prompted(
        FIELD,
        [asked.inputs.source_sentence, *sentences],
        cuts(tools, options.truncate, by_default=True),
        model,
        prompt_name,
    )._replace(left=options.left, named=source_or_sentence)
    batch, padding = await tools.texts.tokenize(texts, call.deadline)
    output = Pooled.compared(model.bundle)
    request = InferenceRequest(model, batch, padding, (output,), field=FIELD)

    return request, replace(compared(model), times=partial(_times, sum(texts.sizes())))


async def predict(asked: TeiPredictRequest, call: Call, tools: Tools) -> Shaped:
    model = call.model(tools.models, asked.model, "classify")
    truncate = cuts(tools, asked.truncate, by_default=True)
    texts = TextsToTokenize(FIELD, asked.inputs.texts, truncate, model, left=asked.left)
    options = ClassifyOptions(function_to_apply="none" if asked.raw_scores else None)
    task = await classify(call, tools, texts, options)

    def shape(response: InferenceResponse) -> Any:
        results = task.finish(response)
        return results if asked.inputs.is_batch else next(results)

    return task.request, JsonAnswer(shape, partial(_times, sum(texts.sizes())))


async def rerank(asked: TeiRerankRequest, call: Call, tools: Tools) -> Decoded:
    request, encoding = await rerank_each([asked], call, tools)
    return request, replace(encoding, shape=lambda response: encoding.shape(response)[0])


async def rerank_each(asked: Sequence[TeiRerankRequest], call: Call, tools: Tools) -> Shaped:
    """A ranking for each of them. All have the options of the first, save top_n and return_text."""
    model = call.model(tools.models, call.named(asked[0].model), "rerank")
    pairs = [(one.query, text) for one in asked for text in one.texts]
    truncate = cuts(tools, asked[0].truncate, by_default=True)
    texts = TextsToTokenize(
        "texts", pairs, truncate, model, left=asked[0].left, named=query_with("texts")
    )
    function: Function = "none" if asked[0].raw_scores else "sigmoid"
    sent_back = call.num_bytes if any(one.return_text for one in asked) else 0
    task = await score_pairs(call, tools, texts, function, answer_bytes=sent_back)
    rankings = (Ranking(len(one.texts), partial(_rank, one), one.top_n or None) for one in asked)
    answer = ranked(task, lambda response, *entries: list(entries), *rankings)
    return task.request, replace(answer, times=partial(_times, sum(texts.sizes())))


def _rank(asked: TeiRerankRequest, index: int, score: Any) -> dict[str, Any]:
    text = {"text": asked.texts[index]} if asked.return_text else {}
    return {"index": index, **text, "score": score}


async def _of_sequences(
    asked: TeiEmbedAllRequest,
    task: Task,
    output: Output[Value],
    call: Call,
    tools: Tools,
    answer: JsonAnswer,
) -> Shaped:
    """One output of texts or ids."""
    model, prompt_name = call.model_and_prompt(tools.models, asked.model, asked.prompt_name, task)
    truncate = cuts_sequences(tools, asked.inputs, asked.truncate, by_default=True)
    sent = SequencesToRead(FIELD, asked.inputs, truncate, model, prompt_name, asked.left)
    batch, padding = await sent.read(call, tools)
    request = InferenceRequest(model, batch, padding, (output,), field=FIELD, hint=OTHER_VOCABULARY)
    return request, replace(answer, times=partial(_times, sum(map(len, asked.inputs))))


def _times(
    num_characters: int, request: InferenceRequest, stages_s: Mapping[str, float]
) -> dict[str, str]:
    """Milliseconds, as text-embeddings-inference tells them. num_characters: of the request; ids
    count as one each."""
    total_s = sum(stages_s.values())
    times_s = {
        "x-compute-time": total_s,
        "x-total-time": total_s,
        "x-tokenization-time": stages_s["decode"],
        "x-queue-time": stages_s["queue"],
        "x-inference-time": stages_s["infer"],
    }
    return {
        "x-compute-type": request.runner.engine.provider,
        "x-compute-characters": str(num_characters),
        "x-compute-tokens": str(request.batch.num_tokens),
        **{name: str(round(seconds * 1000)) for name, seconds in times_s.items()},
    }


TEXTS = {"inputs": ["Pads are dropped.", "Pads come back as zeros."]}
SENTENCES = {"source_sentence": "Pads are dropped.", "sentences": ["Pads come back as zeros."]}


ROUTES = tuple(
    Route(
        path=path,
        name=f"tei_{path.removeprefix('/')}",
        summary=f"{what}, as text-embeddings-inference answers",
        body=body,
        decode=decode,
        examples={"texts": example},
    )
    for path, decode, what, body, example in (
        ("/embed", embed, "Vectors of texts", TeiEmbedRequest, TEXTS),
        ("/embed_all", embed_all, "A vector for each token of texts", TeiEmbedAllRequest, TEXTS),
        ("/embed_sparse", embed_sparse, "Sparse vectors of texts", TeiEmbedAllRequest, TEXTS),
        (
            "/similarity",
            similarity,
            "How alike texts are",
            TeiSimilarityRequest,
            {"inputs": SENTENCES},
        ),
        (
            "/predict",
            predict,
            "Labels of texts, and of pairs of texts",
            TeiPredictRequest,
            {"inputs": [["Pads are dropped."], ["Pads are dropped.", "They cost nothing."]]},
        ),
    )
)
