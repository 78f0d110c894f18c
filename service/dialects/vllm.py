"""vLLM's /score, /classify and /pooling, and its routes for tokens. lm-eval's `remote` tokenizer
asks these, of the model that scores completions.

Source: vLLM's pooling entrypoints and its server, and lm-eval's RemoteTokenizer.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

import orjson
from pydantic import AliasChoices, Field
from starlette.requests import Request

from addnorm.service import VERSION
from addnorm.service.asking.ask import Ask
from addnorm.service.asking.tasks.classification import label_names
from addnorm.service.asking.tasks.window_scores import TextScores
from addnorm.service.engine.manifest import Task
from addnorm.service.engine.outputs import Logits
from addnorm.service.engine.tokenizer import Text, Tokenizer
from addnorm.service.errors import EmptyInput, InvalidInput
from addnorm.service.wire.codec.negotiation import fragment
from addnorm.service.wire.codec.payload import Encode
from addnorm.service.wire.codec.validation import Strict
from addnorm.service.wire.dialect_errors import OPENAI_ERRORS
from addnorm.service.wire.route import PlainRoute, Protocol, Route, parts_of
from addnorm.service.wire.texts.json_answers import JsonAnswer, Ranking, span_fields, usage
from addnorm.service.wire.texts.reranking import RerankOptions, pairs
from addnorm.service.wire.texts.sequences import OneOrSeveral, Row, to_tokenize, vectors
from addnorm.service.wire.texts.text_tasks import ClassifyOptions, label_scores
from addnorm.service.wire.texts.texts import Shown, TextsToTokenize, WindowOptions, Wish
from addnorm.service.wire.tools import Tools


class _ModelOptions(Strict):
    model: str | None = Field(None, description="By default the one model made for this.")
    truncate_prompt_tokens: int | None = Field(
        None, ge=-1, description="Cuts. At least the model's limit, which -1 stands for."
    )


class ScoreRequest(_ModelOptions, RerankOptions):
    text_1: OneOrSeveral = Field(
        validation_alias=AliasChoices("text_1", "queries", "data_1"),
        description="One text, or as many as text_2 has. `queries` and `data_1` mean the same.",
    )
    text_2: OneOrSeveral = Field(
        validation_alias=AliasChoices("text_2", "documents", "data_2"),
        description="Each is scored with its text of text_1. `documents` and `data_2` mean it too.",
    )


class InputRequest(_ModelOptions):
    input: OneOrSeveral = Field(description="A text, or a list of texts.")


class ClassificationRequest(InputRequest, WindowOptions):
    pass


class PoolingRequest(InputRequest):
    dimensions: int | None = Field(None, ge=1, description="Only the first so many.")
    normalize: bool | None = Field(
        None, description="Whether vectors have length 1; by default as the bundle says."
    )
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="Numbers, or base64 of their bytes: little-endian float32."
    )


async def score(body: ScoreRequest, ask: Ask, tools: Tools) -> Encode:
    """InvalidInput if the two lists do not fit each other."""
    first, second = body.text_1, body.text_2
    if len(first) not in (1, len(second)):
        raise InvalidInput(
            f"text_1 has {len(first)} texts, text_2 has {len(second)}: send one text in"
            " text_1, or as many as in text_2",
            param="text_1",
        )
    queries = first * len(second) if len(first) == 1 else first
    texts = list(zip(queries, second, strict=True))
    ranking = Ranking(
        len(texts),
        lambda index, score: {"index": index, "object": "score", "score": score},
        in_order=True,
        unscored=body.unscored("null"),
    )
    wish = _wish(body, "rerank", "text_2", texts)
    return await pairs(wish, body, "sigmoid", ask, tools, _words, ranking)


async def classify(body: ClassificationRequest, ask: Ask, tools: Tools) -> Encode:
    texts = to_tokenize(_wish(body, "classify", "input", body.input), ask, tools)
    score = await label_scores(ask, tools, texts, ClassifyOptions(windows=body.windows))
    ask.outputs = (Logits(),)
    return JsonAnswer(partial(_classes, score))


def _classes(score: Callable[[Ask], Iterator[TextScores]], ask: Ask) -> dict[str, Any]:
    bundle = ask.model.bundle
    labels = label_names(bundle.manifest.labels, bundle.width("logits"))
    entries = [
        {
            "index": index,
            "label": labels[int(probs.argmax())],
            "probs": probs,
            "num_classes": len(labels),
            **span_fields(spans[int(probs.argmax())] if spans else None),
        }
        for index, (probs, _, spans) in enumerate(score(ask))
    ]
    return _words(ask, entries)


async def pool(body: PoolingRequest, ask: Ask, tools: Tools) -> Encode:
    wish = _wish(
        body,
        "embed",
        "input",
        body.input,
        dimensions=body.dimensions,
        normalize=body.normalize,
        in_base64=body.encoding_format == "base64",
    )
    return await vectors(wish, ask, tools, _vectors)


def _vectors(ask: Ask, vectors: Any) -> dict[str, Any]:
    entries = [
        {"index": index, "object": "pooling", "data": vector}
        for index, vector in enumerate(vectors)
    ]
    return _words(ask, entries)


def _wish(
    body: _ModelOptions, task: Task, field: str, texts: Sequence[Text], **others: Any
) -> Wish:
    num_tokens = body.truncate_prompt_tokens
    return Wish(
        model=body.model,
        task=task,
        field=field,
        texts=texts,
        truncate=None if num_tokens is None else True,
        can_cut=False,
        limit=("truncate_prompt_tokens", num_tokens),
        **others,
    )


def _words(ask: Ask, entries: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": ask.id,
        "object": "list",
        "model": ask.model.answered_name,
        "data": entries,
        "usage": usage(ask),
    }


SCORING = Field(None, description="By default the one model that scores completions.")


class PromptTokenizeRequest(Strict):
    model: str | None = SCORING
    prompt: str
    add_special_tokens: bool = True


class DetokenizeRequest(Strict):
    model: str | None = SCORING
    tokens: Annotated[Row, Field(description="Special tokens are kept in the text.")]


async def tokenize(body: PromptTokenizeRequest, ask: Ask, tools: Tools) -> bytes:
    """The text may have any number of tokens."""
    model = ask.find_model(tools.models, ask.names.get("model", body.model), "complete")
    wish = Wish(field="prompt", texts=[body.prompt], takes_prompt=False, can_cut=False)
    texts = TextsToTokenize.of(wish, model)
    tokenizer = tools.texts.tokenizer(texts)
    work = partial(_encode_prompts, tokenizer, body.add_special_tokens)
    (row,) = await tools.texts.tokenize_with(texts, work, ask, list)
    positions = model.bundle.manifest.limits.max_positions
    return orjson.dumps({**row.fields, "count": len(row), "max_model_len": positions})


def _encode_prompts(
    tokenizer: Tokenizer, add_special_tokens: bool, piece: Sequence[Text]
) -> list[Shown]:
    encodings = tokenizer.library.encode_batch(list(piece), add_special_tokens=add_special_tokens)
    return [Shown(len(encoding), {"tokens": fragment(encoding.ids)}) for encoding in encodings]


async def detokenize(body: DetokenizeRequest, ask: Ask, tools: Tools) -> bytes:
    """InvalidInput names the field."""
    if not body.tokens:
        raise EmptyInput("tokens is empty: send at least one token id", param="tokens")
    model = ask.find_model(tools.models, body.model, "complete")
    (text,) = await tools.texts.decode("tokens", [body.tokens], False, model, ask)
    return orjson.dumps({"prompt": text})


async def tokenizer_info(request: Request) -> dict[str, str | None]:
    tokens = parts_of(request).models.find(None, "complete").bundle.manifest.special_tokens
    tokens_by_name = {name: tokens.get(name) for name in ("eos_token", "bos_token", "pad_token")}
    # null where the model's authors name none; there is no chat here
    return {**tokens_by_name, "chat_template": None}


async def version(request: Request) -> dict[str, str]:
    return {"version": VERSION}


TEXTS = ["Pads are dropped."]
SCORE = Route(
    path="/score",
    name="vllm_score",
    summary="Scores of pairs of texts, as vLLM answers",
    body=ScoreRequest,
    decode=score,
    examples={"a pair": {"text_1": "What is dropped?", "text_2": TEXTS}},
)
ROUTES = (
    SCORE,
    replace(SCORE, path="/v1/score", name="vllm_v1_score"),
    Route(
        path="/classify",
        name="vllm_classify",
        summary="The label of each text with the probabilities of all, as vLLM answers",
        body=ClassificationRequest,
        decode=classify,
        examples={"a text": {"input": TEXTS}},
    ),
    Route(
        path="/pooling",
        name="vllm_pooling",
        summary="Vectors of texts, as vLLM answers",
        body=PoolingRequest,
        decode=pool,
        examples={"a text": {"input": TEXTS}},
    ),
    Route(
        path="/detokenize",
        name="detokenize",
        summary="The text of token ids, as vLLM answers",
        body=DetokenizeRequest,
        decode=detokenize,
        infers=False,
        examples={"tokens": {"tokens": [4, 5]}},
    ),
    PlainRoute(
        "/tokenizer_info",
        tokenizer_info,
        "The special tokens of the model that scores completions, as vLLM answers",
        OPENAI_ERRORS.only(400, 404, 503),
        "tokenizer_info",
    ),
    PlainRoute(
        "/version",
        version,
        "The server's version, where vLLM has its own",
        OPENAI_ERRORS.only(503),
        "vllm_version",
    ),
)
PROTOCOL = Protocol(
    tag="vLLM", reference="https://docs.vllm.ai/", routes=ROUTES, errors=OPENAI_ERRORS
)
