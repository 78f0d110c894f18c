"""OpenAI's embeddings under /v1, with Azure's paths of them: vectors of token ids and of texts. And
its completions, for scoring only: the log-probabilities of a prompt's tokens, and the likeliest
next one. Nothing is generated.

Source: OpenAI's API reference and its Python SDK, which asks for base64 unless told otherwise;
lm-eval's local-completions.
"""

import time
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, Field

from addnorm.service.asking.ask import Ask
from addnorm.service.asking.tasks import scoring
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.manifest import Precision, WindowRule
from addnorm.service.engine.outputs import ScoredPrompts, TopLogits
from addnorm.service.engine.outputs.values import VectorDType
from addnorm.service.errors import InvalidInput
from addnorm.service.wire.codec.payload import Encode
from addnorm.service.wire.codec.validation import Strict, agreed
from addnorm.service.wire.dialect_errors import OPENAI_ERRORS
from addnorm.service.wire.route import Protocol, Route
from addnorm.service.wire.texts.json_answers import usage
from addnorm.service.wire.texts.sequences import OTHER_VOCABULARY, Sequences, vectors
from addnorm.service.wire.texts.texts import (
    MODEL,
    PRECISION,
    PROMPT_NAME,
    Truncation,
    Wish,
    check_rule,
)
from addnorm.service.wire.tools import Tools

InputType = Literal["query", "document", "passage", "text", "search_query", "search_document"]
JinaTask = Literal[
    "retrieval.query", "retrieval.passage", "text-matching", "classification", "separation"
]
JinaType = Literal["float", "base64", "binary", "ubinary"]
OneJinaType = Annotated[list[JinaType], Field(min_length=1, max_length=1)]
# what other words for a number's type mean; base64 says how the numbers are written
DTYPES: dict[str, VectorDType | None] = {"float": "float32", "base64": None}


class EmbeddingsFields(Strict):
    """Fields that others than OpenAI have on its path: vLLM's, Jina's, Voyage's and NVIDIA's. They
    mean what OpenAI's and ours do."""

    dtype: VectorDType | None = Field(
        None,
        description="float32 by default; int8 and uint8 by the bundle's ranges, for vectors of all"
        " dimensions; binary and ubinary by the numbers' signs, eight dimensions a byte.",
    )
    dimensions: int | None = Field(
        None,
        ge=1,
        description="Only the first so many, scaled to length 1 where the model's vectors are."
        " Means something only of models trained for it.",
    )
    truncate: bool | Truncation | None = Field(
        None,
        description="Whether texts that are too long are cut, as the model's authors do it, instead"
        " of rejected; or which end is cut, as NVIDIA has it.",
    )
    input_type: InputType | None = Field(
        None,
        description="Puts the model's prompt of this kind before each text; none if it has none of"
        " this kind. Voyage's and NVIDIA's.",
    )
    task: JinaTask | None = Field(None, description="`input_type`, as Jina calls it.")
    truncation: bool | None = Field(None, description="`truncate`, as Voyage calls it.")
    truncate_prompt_tokens: int | None = Field(
        None, ge=-1, description="vLLM's: cuts. At least the model's limit, which -1 stands for."
    )
    output_dtype: Literal["float", "int8", "uint8", "binary", "ubinary"] | None = Field(
        None, description="`dtype`, as Voyage calls it."
    )
    output_dimension: int | None = Field(
        None, ge=1, description="`dimensions`, as Voyage calls it."
    )
    embedding_type: JinaType | OneJinaType | None = Field(
        None, description="Jina's: `encoding_format` and `dtype` in one. Also a list of one."
    )
    normalized: bool | None = Field(
        None, description="Jina's: whether vectors have length 1; by default as the bundle says."
    )
    normalize: bool | None = Field(None, description="`normalized`, as vLLM calls it.")
    windows: WindowRule | None = Field(
        None,
        description="A text that is longer than the model takes is read in windows, and has the"
        " mean of their vectors, weighted by tokens. Wins over truncation.",
    )
    late_chunking: bool | None = Field(
        None,
        description="Jina's: the texts are parts of one, which is all of them end to end. The model"
        " reads that at once, and each vector is the mean over its own part's tokens.",
    )


# LangChain sends texts as ids of OpenAI's own vocabulary unless told not to
HINT = (
    f"{OTHER_VOCABULARY}: in LangChain's OpenAIEmbeddings set check_embedding_ctx_length=False,"
    " which sends texts"
)


class EmbeddingsRequest(EmbeddingsFields):
    """OpenAI's fields, others', and ours: `dtype`, `truncate`, `precision`, `prompt_name`."""

    input: Sequences = Field(
        description="A text, token ids of the model's own vocabulary with its special tokens, or a"
        " list of such. An empty text is its special tokens alone. Ids that do not begin and end"
        " with the special tokens are rejected, unless the model has no tokenizer."
    )
    model: str | None = MODEL
    encoding_format: Literal["float", "base64"] | None = Field(
        None,
        description="Numbers, which is the default, or base64 of their bytes, which is quicker:"
        " little-endian float32, or a byte for each number of a smaller dtype.",
    )
    precision: Precision | None = PRECISION
    prompt_name: str | None = PROMPT_NAME


TOKENS = {"model": "notebook", "input": [[1, 3, 4], [5]], "dimensions": 3}
EMBEDDINGS_EXAMPLES: dict[str, Any] = {
    "token ids": TOKENS,
    "the same as base64": {**TOKENS, "encoding_format": "base64"},
    "texts": {
        "model": "all-minilm-l6-v2",
        "input": ["Pads are dropped.", "Pads are never computed."],
    },
}


async def embed(body: EmbeddingsRequest, ask: Ask, tools: Tools) -> Encode:
    """InvalidInput names the field."""
    jina_type = (
        body.embedding_type[0] if isinstance(body.embedding_type, list) else body.embedding_type
    )
    dtypes: dict[str, Any] = {
        "dtype": body.dtype,
        "output_dtype": body.output_dtype and DTYPES.get(body.output_dtype, body.output_dtype),
        "embedding_type": jina_type and DTYPES.get(jina_type, jina_type),
    }
    if body.input_type is not None and body.task is not None:
        raise InvalidInput("task and input_type are both set: send one of them", param="task")
    kind = body.task or body.input_type
    if body.windows:
        check_rule(body.windows, "mean", "a vector is the mean of all windows")
        if body.late_chunking:
            raise InvalidInput("windows and late_chunking are both set: send one", param="windows")
    wish = Wish(
        model=ask.names.get("model", body.model),
        task="embed",
        precision=body.precision,
        field="input",
        texts=body.input,
        prompt_name=body.prompt_name,
        input_type=kind and ("task" if body.task else "input_type", kind),
        truncate=agreed(
            truncate=None if body.truncate is None else body.truncate not in (False, "NONE"),
            truncation=body.truncation,
            truncate_prompt_tokens=None if body.truncate_prompt_tokens is None else True,
        ),
        left=body.truncate == "START",
        keeps_prompt=True,
        limit=("truncate_prompt_tokens", body.truncate_prompt_tokens),
        windows=body.windows,
        ids_hint=HINT,
        normalize=agreed(normalized=body.normalized, normalize=body.normalize),
        dimensions=agreed(dimensions=body.dimensions, output_dimension=body.output_dimension),
        dtype=agreed(**dtypes) or "float32",
        in_base64=(body.encoding_format or jina_type) == "base64",
        late_chunking=bool(body.late_chunking),
    )
    return await vectors(wish, ask, tools, _embeddings)


def _embeddings(ask: Ask, vectors: Any) -> dict[str, Any]:
    return {
        "id": ask.id,
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": vector}
            for index, vector in enumerate(vectors)
        ],
        "model": ask.model.answered_name,
        "usage": usage(ask),
    }


EMBEDDINGS = tuple(
    Route(
        path=path,
        name=name,
        summary="Embeddings, as OpenAI's clients ask for them",
        body=EmbeddingsRequest,
        decode=embed,
        examples=EMBEDDINGS_EXAMPLES,
    )
    for path, name in (("/v1/embeddings", "embeddings"), ("/embeddings", "root_embeddings"))
)
OPENAIS = EMBEDDINGS[0]
# The path names the model as a deployment, or begins with /openai. Its name wins: Azure's clients
# repeat it in the body, or the name of a model.
OF_AZURE = (
    replace(OPENAIS, path="/openai/v1/embeddings", name="azure_v1_embeddings"),
    replace(
        OPENAIS,
        path="/openai/deployments/{model:path}/embeddings",
        name="azure_embeddings",
        examples={"token ids": TOKENS},
    ),
)


MAX_LOGPROBS = 20  # OpenAI takes 5, others 20


class CompletionRequest(Strict):
    """OpenAI's fields; `precision` is ours."""

    model: str | None = Field(None, description="By default the one model that can score.")
    prompt: Sequences = Field(
        description="A text, token ids of the model's own vocabulary with its special tokens, or a"
        " list of such."
    )
    max_tokens: int | None = Field(
        None,
        description="0: the prompt's tokens are scored. 1: the likeliest next token is added. No"
        " more is generated, so it cannot be left out.",
    )
    echo: bool | None = Field(None, description="Whether the prompt is answered too.")
    logprobs: int | None = Field(
        None,
        ge=0,
        le=MAX_LOGPROBS,
        description="Log-probabilities of the tokens answered, and at each place of so many of the"
        " likeliest.",
    )
    temperature: float | None = Field(
        None, description="0: the new token is the likeliest. Without a new token also 1."
    )
    precision: Precision | None = PRECISION


class CompletionLogprobs(BaseModel):
    """An entry for each token of `text`."""

    tokens: list[str] = Field(
        description="Each by itself; `token_id:N` where the model has no tokenizer."
    )
    token_logprobs: list[float | None] = Field(
        description="Of each token given those before it; null for a prompt's first."
    )
    top_logprobs: list[dict[str, float] | None] = Field(
        description="The likeliest tokens at its place, and the token itself. Of tokens of the same"
        " text the likelier one."
    )
    text_offset: list[int] = Field(
        description="The character of prompt and new token where it begins."
    )


class CompletionChoice(BaseModel):
    index: int
    text: str = Field(description="Of the tokens, special tokens included.")
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["length"]


class CompletionUsage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionResponse(BaseModel):
    """A choice for each prompt, in the order sent."""

    id: str
    object: Literal["text_completion"]
    created: int = Field(description="Unix time.")
    model: str
    system_fingerprint: str = Field(description="As in x-addnorm-fingerprint.")
    choices: list[CompletionChoice]
    usage: CompletionUsage


COMPLETIONS_EXAMPLES: dict[str, Any] = {
    "token ids": {
        "model": "notebook",
        "prompt": [[1, 3, 4]],
        "max_tokens": 1,
        "temperature": 0,
        "echo": True,
        "logprobs": 1,
    }
}


CHOICE_BYTES, TOKEN_BYTES, CANDIDATE_BYTES = 150, 45, 27  # of JSON, about


async def score(body: CompletionRequest, ask: Ask, tools: Tools) -> Encode:
    """InvalidInput names the field."""
    # what would need more than one new token, or one drawn by chance
    if body.max_tokens not in (0, 1):
        value: Any = body.max_tokens
        if value is None:
            value = "missing, which means 16 new tokens"
        raise InvalidInput(
            f"max_tokens is {value}: this server scores, it does not generate; send 0, or 1"
            " for the likeliest next token",
            param="max_tokens",
        )
    if not body.max_tokens and not _scores_prompt(body):
        raise InvalidInput(
            "max_tokens is 0, but echo and logprobs are not both set, so the answer would contain"
            " only the prompt: set both",
            param="max_tokens",
        )
    if body.max_tokens and body.temperature != 0:
        value = "missing, which means 1" if body.temperature is None else body.temperature
        raise InvalidInput(
            f"temperature is {value}: the new token is always the likeliest one, never a random"
            " one; send 0",
            param="temperature",
        )
    if body.temperature not in (None, 0, 1):
        raise InvalidInput(
            f"temperature is {body.temperature}: log-probabilities are always computed at"
            " temperature 1; leave temperature out",
            param="temperature",
        )
    wish = Wish(
        model=body.model,
        task="complete",
        precision=body.precision,
        field="prompt",
        texts=body.prompt,
        truncate=False,
        can_cut=False,
        ids_hint=OTHER_VOCABULARY,
        # callers score with a tokenizer that they chose for this model, which may add nothing
        only_own_ids=False,
        output=partial(_scores, body),
    )
    answer = await vectors(wish, ask, tools, shape=partial(_completions, body))
    num_shown = len(ask.batch) + (ask.batch.num_tokens if body.echo else 0)
    token_bytes = TOKEN_BYTES + CANDIDATE_BYTES * (1 + (body.logprobs or 0))
    ask.answer_bytes = CHOICE_BYTES * len(ask.batch) + token_bytes * num_shown
    return answer


def _scores(body: CompletionRequest, bundle: Bundle) -> ScoredPrompts | TopLogits:
    top_k = min(max(1, body.logprobs or 0), bundle.width("logits"))
    return ScoredPrompts(top_k) if _scores_prompt(body) else TopLogits("last", top_k)


def _scores_prompt(body: CompletionRequest) -> bool:
    return bool(body.echo) and body.logprobs is not None


def _completions(body: CompletionRequest, ask: Ask) -> dict[str, Any]:
    num_tokens, num = ask.batch.num_tokens, len(ask.batch)
    num_new = num * (body.max_tokens or 0)
    return {
        "id": f"cmpl-{ask.id}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": ask.model.answered_name,
        "system_fingerprint": ask.engine.fingerprint.digest,
        "choices": (_choice(body, index, ask) for index in range(num)),
        "usage": {
            "prompt_tokens": num_tokens,
            "completion_tokens": num_new,
            "total_tokens": num_tokens + num_new,
        },
    }


def _choice(body: CompletionRequest, index: int, ask: Ask) -> dict[str, Any]:
    """One choice as JSON."""
    tokenizer = ask.model.tokenizer
    library = tokenizer.library if tokenizer else None
    # ids: of the prompt and the new token, if it is asked for. logprobs: of those shown, where they
    # are asked for; NaN for a prompt's first. candidates, likeliest: the likeliest tokens and their
    # log-probabilities, for the last tokens shown, each `[n, k]`
    ids: list[int] = ask.batch.sequence(index).tokens.tolist()
    if _scores_prompt(body):
        scores = ask.value(ScoredPrompts)
        logprobs = scores.logprobs.rows[index]
        candidates, likeliest = scores.next.token_ids.rows[index], scores.next.logprobs.rows[index]
        if body.max_tokens:
            ids.append(int(candidates[-1, 0]))
            logprobs = np.append(logprobs, likeliest[-1, 0])
        else:
            candidates, likeliest = candidates[:-1], likeliest[:-1]
        num_shown = len(ids)
    else:
        top, row = ask.value(TopLogits), slice(index, index + 1)
        candidates, likeliest = top.token_ids.joined[row], top.logprobs.joined[row]
        logprobs = likeliest[:, 0]
        ids.append(int(candidates[0, 0]))
        num_shown = len(ids) if body.echo else 1
    start = len(ids) - num_shown
    texts = scoring.texts_of([*ids, *candidates.flat], library)
    text, begins = scoring.join_tokens(ids, texts, library)
    choice_logprobs: dict[str, Any] | None = None
    if (num := body.logprobs) is not None:
        # a prompt's first token has no candidates
        first = len(logprobs) - len(candidates)
        best: list[Any] = [None] * first
        for place, token_logprob in enumerate(zip(ids[start:], logprobs, strict=True)):
            if place >= first:
                at = place - first
                best.append(
                    scoring.likely(token_logprob, candidates[at, :num], likeliest[at, :num], texts)
                )
        choice_logprobs = {
            "tokens": [texts[token] for token in ids[start:]],
            "token_logprobs": logprobs,
            "top_logprobs": best,
            "text_offset": begins[start:],
        }
    return {
        "index": index,
        "text": text[begins[start] :],
        "logprobs": choice_logprobs,
        "finish_reason": "length",
    }


COMPLETIONS = Route(
    path="/v1/completions",
    name="completions",
    summary="Log-probabilities of prompts, as OpenAI's clients ask for them",
    body=CompletionRequest,
    decode=score,
    response=CompletionResponse,
    examples=COMPLETIONS_EXAMPLES,
)


PROTOCOL = Protocol(
    tag="inference",
    reference="https://platform.openai.com/docs/api-reference/embeddings",
    routes=(*EMBEDDINGS, COMPLETIONS),
    errors=OPENAI_ERRORS,
)
AZURE = Protocol(
    tag="Azure",
    reference="https://learn.microsoft.com/azure/ai-services/openai/reference",
    routes=OF_AZURE,
    errors=OPENAI_ERRORS,
)
