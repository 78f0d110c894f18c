"""text-embeddings-inference's inference routes. Its clients name no model: the task's default
answers.

Source: its router/src/http/server.rs. Its statuses are not taken over: ours say more.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from addnorm.service.asking.ask import Ask
from addnorm.service.asking.tasks.classification import Function
from addnorm.service.dialects.tei.tei_schema import (
    TeiEmbedAllRequest,
    TeiEmbedRequest,
    TeiPredictRequest,
    TeiRerankRequest,
    TeiSimilarityParameters,
    TeiSimilarityRequest,
)
from addnorm.service.engine.batch import Floats, Ints
from addnorm.service.engine.manifest import Task
from addnorm.service.engine.outputs import Activations, Output, Pooled, Sparse, Value
from addnorm.service.errors import EmptyInput
from addnorm.service.wire.codec.decoding import Tools
from addnorm.service.wire.codec.negotiation import Several
from addnorm.service.wire.route import Route
from addnorm.service.wire.texts.json_answers import (
    JsonAnswer,
    Ranking,
    compared,
    pooled,
    ranked,
)
from addnorm.service.wire.texts.sequences import OTHER_VOCABULARY, SequencesToRead
from addnorm.service.wire.texts.task_options import ClassifyOptions
from addnorm.service.wire.texts.text_tasks import classify, score_pairs
from addnorm.service.wire.texts.texts import (
    TextsToTokenize,
    query_with,
    source_or_sentence,
)

FIELD = "inputs"
ENTRIES_AT_ONCE = 1024  # of a sparse vector
ENTRY_BYTES = 48  # of one as JSON, and as numbers until it is written


async def embed(body: TeiEmbedRequest, ask: Ask, tools: Tools) -> JsonAnswer:
    output = Pooled(normalize=body.normalize, dimensions=body.dimensions)
    return await _of_sequences(body, "embed", output, ask, tools, JsonAnswer(pooled))


async def embed_all(body: TeiEmbedAllRequest, ask: Ask, tools: Tools) -> JsonAnswer:
    return await _of_sequences(
        body,
        "embed",
        Activations(),
        ask,
        tools,
        JsonAnswer(lambda ask: ask.value(Activations).for_json()),
    )


async def embed_sparse(body: TeiEmbedAllRequest, ask: Ask, tools: Tools) -> JsonAnswer:
    answer = await _of_sequences(body, "sparse", Sparse(), ask, tools, JsonAnswer(_vectors))
    ask.answer_bytes = ENTRY_BYTES * Sparse().max_entries(ask.model.bundle, ask.batch)
    return answer


def _vectors(ask: Ask) -> Iterator[Any]:
    vectors = ask.value(Sparse)
    return map(_entries, vectors.indices, vectors.values)


def _entries(indices: Ints, values: Floats) -> Iterator[Any]:
    """A few at a time: each takes ten times its bytes until it is written."""
    for start in range(0, len(indices), ENTRIES_AT_ONCE):
        some = slice(start, start + ENTRIES_AT_ONCE)
        pairs = zip(indices[some].tolist(), values[some], strict=True)
        yield Several({"index": index, "value": value} for index, value in pairs)


async def similarity(body: TeiSimilarityRequest, ask: Ask, tools: Tools) -> JsonAnswer:
    options = body.parameters or TeiSimilarityParameters()
    sentences = body.inputs.sentences
    if not sentences:
        raise EmptyInput("inputs.sentences is empty: send at least one text", param=FIELD)
    model, prompt_name = ask.find_model_and_prompt(
        tools.models, body.model, options.prompt_name, "embed"
    )
    texts = TextsToTokenize.prompted(
        FIELD,
        [body.inputs.source_sentence, *sentences],
        tools.texts.cuts(options.truncate, by_default=True),
        model,
        prompt_name,
    )._replace(left=options.left, named=source_or_sentence)
    ask.batch, ask.padding = await tools.texts.tokenize(texts, ask)
    ask.outputs, ask.field = (Pooled.compared(model.bundle),), FIELD
    return replace(compared(model), times=partial(_times, sum(texts.sizes())))


async def predict(body: TeiPredictRequest, ask: Ask, tools: Tools) -> JsonAnswer:
    model = ask.find_model(tools.models, body.model, "classify")
    truncate = tools.texts.cuts(body.truncate, by_default=True)
    texts = TextsToTokenize(FIELD, body.inputs.texts, truncate, model, left=body.left)
    options = ClassifyOptions(function_to_apply="none" if body.raw_scores else None)
    finish = await classify(ask, tools, texts, options)

    def shape(ask: Ask) -> Any:
        results = finish(ask)
        return results if body.inputs.is_batch else next(results)

    return JsonAnswer(shape, partial(_times, sum(texts.sizes())))


async def rerank(body: TeiRerankRequest, ask: Ask, tools: Tools) -> JsonAnswer:
    encoding = await rerank_each([body], ask, tools)
    return replace(encoding, shape=lambda ask: encoding.shape(ask)[0])


async def rerank_each(body: Sequence[TeiRerankRequest], ask: Ask, tools: Tools) -> JsonAnswer:
    """A ranking for each of them. All have the options of the first, save top_n and return_text."""
    model = ask.find_model(tools.models, ask.names.get("model", body[0].model), "rerank")
    pairs = [(one.query, text) for one in body for text in one.texts]
    truncate = tools.texts.cuts(body[0].truncate, by_default=True)
    texts = TextsToTokenize(
        "texts", pairs, truncate, model, left=body[0].left, named=query_with("texts")
    )
    function: Function = "none" if body[0].raw_scores else "sigmoid"
    sent_back = ask.num_body_bytes if any(one.return_text for one in body) else 0
    options = None, sent_back, body[0].max_time_ms
    finish = await score_pairs(ask, tools, texts, function, *options)
    rankings = (Ranking(len(one.texts), partial(_rank, one), one.top_n or None) for one in body)
    answer = ranked(finish, lambda ask, *entries: list(entries), *rankings)
    return replace(answer, times=partial(_times, sum(texts.sizes())))


def _rank(body: TeiRerankRequest, index: int, score: Any) -> dict[str, Any]:
    text = {"text": body.texts[index]} if body.return_text else {}
    return {"index": index, **text, "score": score}


async def _of_sequences(
    body: TeiEmbedAllRequest,
    task: Task,
    output: Output[Value],
    ask: Ask,
    tools: Tools,
    answer: JsonAnswer,
) -> JsonAnswer:
    """One output of texts or ids."""
    model, prompt_name = ask.find_model_and_prompt(tools.models, body.model, body.prompt_name, task)
    truncate = tools.texts.cuts(body.truncate, by_default=True, texts=body.inputs)
    sent = SequencesToRead(FIELD, body.inputs, truncate, model, prompt_name, body.left)
    ask.batch, ask.padding = await sent.read(ask, tools)
    ask.outputs, ask.field, ask.hint = (output,), FIELD, OTHER_VOCABULARY
    return replace(answer, times=partial(_times, sum(map(len, body.inputs))))


def _times(num_characters: int, ask: Ask) -> dict[str, str]:
    """Milliseconds, as text-embeddings-inference tells them. num_characters: of the request; ids
    count as one each."""
    stages_s = ask.stages_s
    total_s = sum(stages_s.values())
    times_s = {
        "x-compute-time": total_s,
        "x-total-time": total_s,
        "x-tokenization-time": stages_s["decode"],
        "x-queue-time": stages_s["queue"],
        "x-inference-time": stages_s["infer"],
    }
    return {
        "x-compute-type": ask.engine.provider,
        "x-compute-characters": str(num_characters),
        "x-compute-tokens": str(ask.batch.num_tokens),
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
