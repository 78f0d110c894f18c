"""text-embeddings-inference's routes. Its clients name no model: the task's default answers.
`shared_paths.py` has the paths that other dialects share.

Source: its router/src/http/types.rs and server.rs. Its statuses are not taken over: ours say more.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, islice
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

import orjson
from pydantic import BaseModel, Field, PlainValidator, model_validator
from pydantic_core import PydanticCustomError
from starlette.requests import Request
from starlette.responses import Response

from addnorm.service import VERSION
from addnorm.service.asking.ask import Ask
from addnorm.service.asking.tasks.classification import Function, label_names
from addnorm.service.engine.batch import Floats, Ints
from addnorm.service.engine.manifest import Task
from addnorm.service.engine.model import Model
from addnorm.service.engine.outputs import Activations, Pooled, Sparse
from addnorm.service.engine.registry import Models
from addnorm.service.engine.tokenizer import Text, Tokenizer
from addnorm.service.errors import EmptyInput, InvalidInput
from addnorm.service.wire.codec.negotiation import Several, fragment, written
from addnorm.service.wire.codec.openapi import query
from addnorm.service.wire.codec.payload import Payload
from addnorm.service.wire.codec.shown import shown
from addnorm.service.wire.codec.validation import Strict, into_body
from addnorm.service.wire.dialect_errors import HUGGING_FACE_ERRORS, TEI_ERRORS
from addnorm.service.wire.route import Parts, PlainRoute, Protocol, Route, parts_of
from addnorm.service.wire.texts.json_answers import JsonAnswer, Ranking, Shape, likeness
from addnorm.service.wire.texts.reranking import BestOptions, pairs
from addnorm.service.wire.texts.sequences import (
    ONE_ROW,
    OTHER_VOCABULARY,
    ROWS,
    OneOrSeveral,
    Sequences,
    Strings,
    to_tokenize,
    vectors,
)
from addnorm.service.wire.texts.text_tasks import ClassifyOptions, classify
from addnorm.service.wire.texts.texts import (
    PROMPT_NAME,
    Shown,
    TextsToTokenize,
    WindowOptions,
    Wish,
    check_size,
    column,
    query_with,
    source_or_sentence,
)
from addnorm.service.wire.tools import Tools

# our names and Cohere's
InputType = Literal["query", "document", "search_query", "search_document"]
INPUTS = Field(
    description="A text, token ids with their special tokens, or a list of either. Ids are not cut,"
    " and rejected without the special tokens at both ends, unless the model has no tokenizer."
)


class PredictInputs(NamedTuple):
    texts: Annotated[list[Text], Field(fail_fast=True)]
    is_batch: bool  # then the response is a list for each


def _predict_inputs(value: Any) -> PredictInputs:
    """`["a", "b"]` is one pair. A batch is a list of lists of one or two texts."""
    if isinstance(value, str):
        return PredictInputs([value], is_batch=False)
    if isinstance(value, list) and value and isinstance(value[0], str):
        return PredictInputs([_one_or_two(value)], is_batch=False)
    if isinstance(value, list):
        return PredictInputs([_one_or_two(texts) for texts in value], is_batch=True)
    raise PydanticCustomError(
        "predict_kind",
        "Input should be a text, a pair [text, text], or a batch [[text], [text, text], ...]",
    )


def _one_or_two(value: Any) -> Text:
    if isinstance(value, list) and set(map(type, value)) == {str} and len(value) <= 2:
        return value[0] if len(value) == 1 else (value[0], value[1])
    raise PydanticCustomError(
        "predict_pair",
        "Input should be one text or a pair in a list; texts by themselves make a batch as"
        " [[text], [text], ...]",
    )


def _rows(value: Any) -> list[list[int]]:
    if isinstance(value, list) and value and not isinstance(value[0], list):
        return [ONE_ROW.validate_python(value, strict=True)]
    return ROWS.validate_python(value, strict=True)


OneOrTwo = Annotated[list[str], Field(min_length=1, max_length=2)]
Rows = Annotated[list[list[int]], PlainValidator(_rows, list[int] | list[list[int]])]
MODEL = Field(None, description="By default the one model made for this.")


class Cutting(Strict):
    truncate: bool | None = Field(
        None,
        description="Whether texts that are too long are cut, which is the default, instead of"
        " rejected.",
    )
    truncation_direction: Literal["Left", "Right", "left", "right"] = Field(
        "right", description="At which end they are cut."
    )

    @property
    def left(self) -> bool:
        return self.truncation_direction.lower() == "left"


class TeiRequest(Cutting):
    model: str | None = MODEL
    parameters: dict[str, Any] | None = Field(
        None, description="The other fields may stand in here, as Hugging Face's clients have it."
    )

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, value: Any) -> Any:
        return into_body(value)


class TeiEmbedAllRequest(TeiRequest):
    """Token ids instead of texts are taken as they are."""

    inputs: Sequences = INPUTS
    prompt_name: str | None = PROMPT_NAME
    input_type: InputType | None = Field(
        None,
        description="Which texts they are, in place of prompt_name: of an inference-free sparse"
        " encoder, queries run no model.",
    )


class TeiEmbedRequest(TeiEmbedAllRequest):
    normalize: bool = Field(True, description="Whether vectors are scaled to length 1.")
    dimensions: int | None = Field(None, ge=1, description="Only the first so many.")


class TeiRerankRequest(TeiRequest, BestOptions):
    query: str
    texts: Strings = Field(description="Each is scored with the query, as a pair.")
    return_text: bool = False


class TeiPredictRequest(TeiRequest, WindowOptions):
    inputs: Annotated[
        PredictInputs, PlainValidator(_predict_inputs, str | OneOrTwo | list[OneOrTwo])
    ] = Field(description="A text, one pair of texts, or a batch of lists of one or two texts.")
    raw_scores: bool = Field(False, description="Whether scores are logits.")


class TeiSentences(Strict):
    source_sentence: str
    sentences: Strings


class TeiSimilarityParameters(Cutting):
    prompt_name: str | None = PROMPT_NAME


class TeiSimilarityRequest(Strict):
    model: str | None = MODEL
    inputs: TeiSentences
    parameters: TeiSimilarityParameters | None = None


class TeiTokenizeRequest(Strict):
    model: str | None = MODEL
    inputs: OneOrSeveral = Field(description="A text, or a list of texts.")
    add_special_tokens: bool = True
    prompt_name: str | None = PROMPT_NAME


class TeiDecodeRequest(Strict):
    model: str | None = MODEL
    ids: Rows = Field(description="Token ids, or a list of such.")
    skip_special_tokens: bool = True


# the first that a model is served for says which model is described
TASKS: tuple[Task, ...] = (
    "embed", "rerank", "classify", "sparse", "multi_vector", "tag", "fill_mask", "complete",
    "extract",
)  # fmt: skip
# below it are paths of one model, for clients that add theirs to a URL and name none: Dify's
OF_MODEL = "/hf/{model:path}"
POOLINGS = {"first": "cls", "last": "last_token"}  # others have our names
DTYPES = {"fp32": "float32", "fp16": "float16"}  # int8 is called so


def model_or_default(models: Models, ref: str | None = None) -> Model:
    """The model of this name; without one that which embeds by default, else the one of another
    task. InvalidInput where several can and none is the default."""
    if ref is not None:
        return models.find(ref)
    defaults = models.defaults()
    tasks = (task for task in TASKS if any(task in model.bundle.tasks for model in defaults))
    return models.find(None, next(tasks, None))


FIELD = "inputs"
ENTRIES_AT_ONCE = 1024  # of a sparse vector
ENTRY_BYTES = 48  # of one as JSON, and as numbers until it is written


async def embed(body: TeiEmbedRequest, ask: Ask, tools: Tools) -> JsonAnswer:
    wish = _wish(body, "embed", normalize=body.normalize, dimensions=body.dimensions)
    return _timed(await vectors(wish, ask, tools), body.inputs)


async def embed_all(body: TeiEmbedAllRequest, ask: Ask, tools: Tools) -> JsonAnswer:
    wish = _wish(body, "embed", output=lambda _: Activations())
    answer = await vectors(wish, ask, tools, shape=lambda ask: ask.value(Activations).for_json())
    return _timed(answer, body.inputs)


async def embed_sparse(body: TeiEmbedAllRequest, ask: Ask, tools: Tools) -> JsonAnswer:
    wish = _wish(body, "sparse", output=lambda _: Sparse())
    answer = await vectors(
        wish,
        ask,
        tools,
        shape=lambda ask: map(_entries, ask.value(Sparse).indices, ask.value(Sparse).values),
    )
    ask.answer_bytes = ENTRY_BYTES * Sparse().max_entries(ask.model.bundle, ask.batch)
    return _timed(answer, body.inputs)


def _wish(body: TeiEmbedAllRequest, task: Task, **others: Any) -> Wish:
    return Wish(
        model=body.model,
        task=task,
        field=FIELD,
        texts=body.inputs,
        prompt_name=body.prompt_name,
        input_type=body.input_type and ("input_type", body.input_type),
        truncate=body.truncate,
        cuts=True,
        left=body.left,
        ids_hint=OTHER_VOCABULARY,
        **others,
    )


def _entries(indices: Ints, values: Floats) -> Iterator[Any]:
    """A few at a time: each takes ten times its bytes until it is written."""
    for start in range(0, len(indices), ENTRIES_AT_ONCE):
        chunk = slice(start, start + ENTRIES_AT_ONCE)
        pairs = zip(indices[chunk].tolist(), values[chunk], strict=True)
        yield Several({"index": index, "value": value} for index, value in pairs)


async def similarity(body: TeiSimilarityRequest, ask: Ask, tools: Tools) -> JsonAnswer:
    options = body.parameters or TeiSimilarityParameters()
    sentences = body.inputs.sentences
    if not sentences:
        raise EmptyInput("inputs.sentences is empty: send at least one text", param=FIELD)
    wish = Wish(
        model=body.model,
        task="embed",
        field=FIELD,
        texts=[body.inputs.source_sentence, *sentences],
        named=source_or_sentence,
        prompt_name=options.prompt_name,
        truncate=options.truncate,
        cuts=True,
        left=options.left,
        output=Pooled.for_comparison,
    )
    return _timed(await vectors(wish, ask, tools, shape=likeness), wish.texts)


async def predict(body: TeiPredictRequest, ask: Ask, tools: Tools) -> JsonAnswer:
    wish = Wish(
        model=body.model,
        task="classify",
        field=FIELD,
        texts=body.inputs.texts,
        takes_prompt=False,
        truncate=body.truncate,
        cuts=True,
        left=body.left,
    )
    function: Function | None = "none" if body.raw_scores else None
    options = ClassifyOptions(function_to_apply=function, windows=body.windows)
    finish = await classify(ask, tools, to_tokenize(wish, ask, tools), options)

    def shape(ask: Ask) -> Any:
        answers = finish(ask)
        return answers if body.inputs.is_batch else next(answers)

    return _timed(JsonAnswer(shape), wish.texts)


async def rerank(body: TeiRerankRequest, ask: Ask, tools: Tools) -> JsonAnswer:
    encoding = await rerank_each([body], ask, tools)
    return replace(encoding, shape=lambda ask: encoding.shape(ask)[0])


async def rerank_each(body: Sequence[TeiRerankRequest], ask: Ask, tools: Tools) -> JsonAnswer:
    """A ranking for each of them. All have the options of the first, save top_n, top_k and
    return_text."""
    wish = Wish(
        model=ask.names.get("model", body[0].model),
        field="texts",
        texts=[(request.query, text) for request in body for text in request.texts],
        named=query_with("texts"),
        truncate=body[0].truncate,
        cuts=True,
        left=body[0].left,
    )
    unscored = body[0].unscored("nothing")
    rankings = [
        Ranking(len(request.texts), partial(_rank, request), request.num_best, unscored=unscored)
        for request in body
    ]
    sent_back = ask.num_body_bytes if any(request.return_text for request in body) else 0
    answer = await pairs(
        wish, body[0], body[0].function, ask, tools, _lists, *rankings, answer_bytes=sent_back
    )
    return _timed(answer, wish.texts)


def _lists(_: Ask, *entries: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    return list(entries)


def _rank(body: TeiRerankRequest, index: int, score: Any) -> dict[str, Any]:
    text = {"text": body.texts[index]} if body.return_text else {}
    return {"index": index, **text, "score": score}


def _timed(answer: JsonAnswer, texts: Sequence[Text | list[int]]) -> JsonAnswer:
    """The answer with text-embeddings-inference's headers. Token ids count as a character each."""
    parts = (text if isinstance(text, tuple) else (text,) for text in texts)
    num_characters = sum(len(part) for text in parts for part in text)
    return replace(answer, times=partial(_times, num_characters))


def _times(num_characters: int, ask: Ask) -> dict[str, str]:
    """Milliseconds, as text-embeddings-inference tells them. num_characters: of the request."""
    stages_s = ask.record.stages_s
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
SENTENCES = {
    "inputs": {"source_sentence": "Pads are dropped.", "sentences": ["Pads come back as zeros."]}
}
PAIRS = {"inputs": [["Pads are dropped."], ["Pads are dropped.", "They cost nothing."]]}
TASK_ROUTES = tuple(
    Route(
        path=path,
        name=f"tei_{path.removeprefix('/')}",
        summary=f"{title}, as text-embeddings-inference answers",
        body=body,
        decode=decode,
        examples={"texts": example},
    )
    for path, decode, title, body, example in (
        ("/embed", embed, "Vectors of texts", TeiEmbedRequest, TEXTS),
        ("/embed_all", embed_all, "A vector for each token of texts", TeiEmbedAllRequest, TEXTS),
        ("/embed_sparse", embed_sparse, "Sparse vectors of texts", TeiEmbedAllRequest, TEXTS),
        ("/similarity", similarity, "How alike texts are", TeiSimilarityRequest, SENTENCES),
        ("/predict", predict, "Labels of texts, and of pairs of texts", TeiPredictRequest, PAIRS),
    )
)


async def tokenize(body: TeiTokenizeRequest, ask: Ask, tools: Tools) -> Payload:
    """Texts may have any number of tokens."""
    model = _model(body.model, ask, tools)
    wish = Wish(field="inputs", texts=body.inputs, can_cut=False)
    texts = TextsToTokenize.of(wish, model, body.prompt_name)
    work = partial(_encode_texts, tools.texts.tokenizer(texts), body.add_special_tokens)
    return await tools.texts.tokenize_with(texts, work, ask, _in_rows)


def _model(body_name: str | None, ask: Ask, tools: Tools) -> Model:
    name = ask.names.get("model", body_name)
    return ask.find_model(tools.models, name or model_or_default(tools.models).bundle.ref)


def _encode_texts(
    tokenizer: Tokenizer, add_special_tokens: bool, piece: Sequence[Text]
) -> list[Shown]:
    encodings = tokenizer.library.encode_batch(list(piece), add_special_tokens=add_special_tokens)
    rows = list[Shown]()
    for text, encoding in zip(map(str, piece), encodings, strict=True):
        # where each character, and the end, stands in the text as UTF-8
        places: Sequence[int] = range(len(text) + 1)
        if not text.isascii():
            places = list(accumulate((len(character.encode()) for character in text), initial=0))
        parts = encoding.ids, encoding.tokens, encoding.offsets, encoding.special_tokens_mask
        tokens = [
            {
                "id": index,
                "text": token if is_special else text[start:stop],
                "special": bool(is_special),
                "start": None if is_special else places[start],
                "stop": None if is_special else places[stop],
            }
            for index, token, (start, stop), is_special in zip(*parts, strict=True)
        ]
        rows.append(Shown(len(encoding), {"tokens": fragment(tokens)}))
    return rows


def _in_rows(rows: Sequence[Shown]) -> Payload:
    return Payload(written(column(rows, "tokens")))


async def decode(body: TeiDecodeRequest, ask: Ask, tools: Tools) -> bytes:
    """InvalidInput names the field."""
    if not body.ids:
        raise EmptyInput("ids is empty: send at least one token id", param="ids")
    texts = await tools.texts.decode(
        "ids", body.ids, body.skip_special_tokens, _model(body.model, ask, tools), ask
    )
    return orjson.dumps(texts)


DECODE = Route(
    path="/decode",
    name="tei_decode",
    summary="The texts of token ids, as text-embeddings-inference answers",
    body=TeiDecodeRequest,
    decode=decode,
    infers=False,
    examples={"ids": {"ids": [[2, 4, 5, 3]]}},
)


Instance = TypeVar("Instance", bound=TeiRequest)
FREE_FIELDS = {"inputs", "query", "texts", "top_n", "top_k", "return_text"}  # that may differ


class VertexRequest(Strict):
    """Instances whose options differ are rejected: they would not be one request."""

    instances: Annotated[list[dict[str, Any]], Field(fail_fast=True)] = Field(
        description="Bodies of /rerank if the first has `query`, else of what the server's model is"
        " made for: /embed, /embed_sparse or /predict."
    )
    parameters: Any = Field(None, description="Has no effect.")


class Instances(BaseModel, Generic[Instance]):
    instances: Annotated[list[Instance], Field(fail_fast=True)]


async def predict_instances(body: VertexRequest, ask: Ask, tools: Tools) -> JsonAnswer:
    """Google's Vertex AI: the instances become one request, and its results are shared out to the
    predictions."""
    if not body.instances:
        raise EmptyInput("instances is empty: send at least one", param="instances")
    model_name = body.instances[0].get("model")
    if not isinstance(model_name, str) or not model_name:
        model_name = None  # of another type it is rejected with the body
    tasks = model_or_default(tools.models, model_name).bundle.tasks
    if "query" in body.instances[0]:
        rerankings = await _instances(TeiRerankRequest, body, ask, tools)
        encoding = await rerank_each(rerankings, ask, tools)
        return replace(encoding, shape=partial(_predictions, encoding.shape, None))
    if "embed" in tasks or "sparse" in tasks:
        answer = embed if "embed" in tasks else embed_sparse
        embeddings = await _instances(TeiEmbedRequest, body, ask, tools)
        kinds = [{type(text_or_ids) for text_or_ids in request.inputs} for request in embeddings]
        for index, kind in enumerate(kinds):
            if kind and kinds[0] and kind != kinds[0]:
                nouns = ("texts", "token ids") if str in kind else ("token ids", "texts")
                raise InvalidInput(
                    f"instances[{index}] has {nouns[0]}, instances[0] has {nouns[1]}: send them"
                    " in separate requests",
                    param="instances",
                )
        inputs = [text_or_ids for request in embeddings for text_or_ids in request.inputs]
        joint_request = embeddings[0].model_copy(update={"inputs": inputs})
        encoding = await answer(joint_request, ask, tools)
        share = partial(_share_out, [len(request.inputs) for request in embeddings])
    else:
        predictions = await _instances(TeiPredictRequest, body, ask, tools)
        batches = [request.inputs for request in predictions]
        joint_inputs = PredictInputs(
            [text for batch in batches for text in batch.texts], is_batch=True
        )
        joint_prediction = predictions[0].model_copy(update={"inputs": joint_inputs})
        encoding = await predict(joint_prediction, ask, tools)
        share = partial(
            _share_out, [len(batch.texts) if batch.is_batch else None for batch in batches]
        )
    return replace(encoding, shape=partial(_predictions, encoding.shape, share))


async def _instances(
    instance: type[Instance], body: VertexRequest, ask: Ask, tools: Tools
) -> list[Instance]:
    """All as one type, and with the same options. InvalidInput names what differs."""
    check_size("instances", len(body.instances), "instances", tools.texts.settings.max_sequences)
    kind, fields = Instances[instance], {"instances": body.instances}  # type: ignore[valid-type]
    batch = await tools.bodies.fit(kind, fields, ask, ask.num_body_bytes)
    instances: list[Instance] = batch.instances
    for field in (name for name in instance.model_fields if name not in FREE_FIELDS):
        first_value, *later_values = (getattr(request, field) for request in instances)
        for index, value in enumerate(later_values, 1):
            if value != first_value:
                raise InvalidInput(
                    f"instances[{index}] has {field} {shown(value)}, instances[0] has"
                    f" {shown(first_value)}: send instances with different options in separate"
                    " requests",
                    param="instances",
                )
    return instances


def _share_out(counts: Sequence[int | None], answers: Any) -> Iterator[Any]:
    """The next so many results for each instance; None: one, and no list of it."""
    remaining = iter(answers)
    for count in counts:
        yield next(remaining) if count is None else islice(remaining, count)


def _predictions(shape: Shape, share: Callable[[Any], Iterator[Any]] | None, ask: Ask) -> Any:
    answers = shape(ask)
    return {"predictions": share(answers) if share else answers}


VERTEX = Route(
    path="/vertex",
    name="vertex_predict",
    summary="Instances of one task, as Vertex AI asks for them",
    body=VertexRequest,
    decode=predict_instances,
    examples={"texts": {"instances": [{"inputs": "Pads are dropped."}]}},
)


async def info(request: Request) -> dict[str, Any]:
    return _info(parts_of(request), request.query_params.get("model") or None)


async def info_of_model(request: Request, model: str) -> dict[str, Any]:
    return _info(parts_of(request), model or None)


def _info(parts: Parts, ref: str | None) -> dict[str, Any]:
    model, settings = model_or_default(parts.models, ref), parts.settings
    bundle, manifest = model.bundle, model.bundle.manifest
    precision = model.default_precision
    # text-embeddings-inference has no models of the other tasks, nor modules as they are
    task = next((task for task in TASKS if task in bundle.tasks), "as_it_is")
    model_type: dict[str, Any] = {task: {}}
    if task in ("embed", "sparse"):
        pooling = POOLINGS.get(manifest.pooling, manifest.pooling)
        model_type = {"embedding": {"pooling": "splade" if task == "sparse" else pooling}}
    elif task in ("rerank", "classify"):
        names = label_names(manifest.labels, bundle.width("logits"))
        labels = {
            "id2label": {str(index): name for index, name in enumerate(names)},
            "label2id": {name: index for index, name in enumerate(names)},
        }
        model_type = {"reranker" if task == "rerank" else "classifier": labels}
    return {
        "model_id": bundle.ref,
        "model_sha": bundle.manifest_sha256 or None,
        "model_dtype": DTYPES.get(precision, precision),
        "served_model_name": manifest.name,
        "model_type": model_type,
        "max_concurrent_requests": settings.max_connections,
        "max_input_length": manifest.limits.max_text_tokens,
        "max_batch_tokens": settings.max_tokens,
        "max_batch_requests": None,
        "max_client_batch_size": settings.max_sequences,
        "auto_truncate": settings.truncate is not False,
        "tokenization_workers": settings.num_cores,
        "version": VERSION,
        "sha": None,
        "docker_label": None,
    }


async def health(request: Request) -> Response:
    await parts_of(request).readiness.check()
    return Response()


ABOUT = (
    PlainRoute(
        "/info",
        info,
        "The model that embeds, or the one of another task, described as text-embeddings-inference"
        " does",
        TEI_ERRORS.only(400, 404, 503),
        "tei_info",
        documented=query("model", "Its name."),
    ),
    PlainRoute(
        f"{OF_MODEL}/info",
        info_of_model,
        "One model, described as text-embeddings-inference does",
        HUGGING_FACE_ERRORS.only(404, 503),
        "tei_info_of_model",
    ),
    *(
        PlainRoute(
            path,
            health,
            "Whether every model gives its known answer: an empty answer",
            TEI_ERRORS.only(503),
            name,
            documented={"response_class": Response},
        )
        for path, name in (("/health", "tei_health"), ("/ping", "sagemaker_ping"))
    ),
)
PROTOCOL = Protocol(
    tag="text-embeddings-inference",
    reference="https://huggingface.github.io/text-embeddings-inference/",
    routes=(*TASK_ROUTES, VERTEX, DECODE, *ABOUT),
    errors=TEI_ERRORS,
    scopes={"/health": None, "/ping": None},
    health=("/health", "/ping"),
)
