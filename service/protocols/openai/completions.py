"""OpenAI's completions under /v1, for scoring only: the log-probabilities of a prompt's tokens, and
the likeliest next one. Nothing is generated.

Source: OpenAI's API reference and its Python SDK; lm-eval's local-completions.
"""

import time
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, Field

from addnorm.service.errors import InvalidInput
from addnorm.service.engine.outputs import Output, ScoredPrompts, TopLogits, Value
from addnorm.service.asking.request import InferenceRequest, InferenceResponse
from addnorm.service.asking.request_path import Call
from addnorm.service.protocols.codec.decoding import Tools
from addnorm.service.protocols.codec.validation import Strict
from addnorm.service.protocols.route import Decoded, Route
from addnorm.service.protocols.texts.json_answers import JsonAnswer
from addnorm.service.protocols.texts.sequences import (
    OTHER_VOCABULARY,
    Sequences,
    SequencesToRead,
)
from addnorm.service.runtime.batch import Floats, Ints
from addnorm.service.runtime.manifest import Precision
from addnorm.service.tasks import scoring

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
    precision: Precision | None = Field(
        None, description="One the model has; by default as it says."
    )


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


EXAMPLES: dict[str, Any] = {
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


async def score(asked: CompletionRequest, call: Call, tools: Tools) -> Decoded:
    """InvalidInput names the field."""
    model, prompt_name = call.model_and_prompt(tools.models, asked.model, None, "complete")
    _check(asked)
    # callers score with a tokenizer that they chose for this model, which may add nothing
    sent = SequencesToRead("prompt", asked.prompt, None, model, prompt_name, only_own=False)
    batch, padding = await sent.read(call, tools)
    num_shown = len(batch) + (batch.num_tokens if asked.echo else 0)
    token_bytes = TOKEN_BYTES + CANDIDATE_BYTES * (1 + (asked.logprobs or 0))
    request = InferenceRequest(
        model,
        batch,
        padding,
        (_output(asked, model.bundle.width("logits")),),
        asked.precision,
        answer_bytes=CHOICE_BYTES * len(batch) + token_bytes * num_shown,
        field="prompt",
        hint=OTHER_VOCABULARY,
    )
    return request, JsonAnswer(partial(_words, asked, call.context.request_id))


def _check(asked: CompletionRequest) -> None:
    """InvalidInput for what would need more than one new token, or one drawn by chance."""
    if asked.max_tokens not in (0, 1):
        sent = "missing, which asks for 16 new tokens"
        if asked.max_tokens is not None:
            sent = str(asked.max_tokens)
        raise InvalidInput(
            f"max_tokens is {sent}: this server scores, it does not generate; send 0, or 1 for the"
            " likeliest next token",
            param="max_tokens",
        )
    if not asked.max_tokens and not _scores_prompt(asked):
        raise InvalidInput(
            "max_tokens is 0, but echo and logprobs are not both set: nothing would be answered"
            " but what was sent",
            param="max_tokens",
        )
    _check_temperature(asked)


def _check_temperature(asked: CompletionRequest) -> None:
    if asked.max_tokens and asked.temperature != 0:
        sent = "missing, which means 1" if asked.temperature is None else asked.temperature
        raise InvalidInput(
            f"temperature is {sent}: the new token is always the likeliest one, never drawn by"
            " chance; send 0",
            param="temperature",
        )
    if asked.temperature not in (None, 0, 1):
        raise InvalidInput(
            f"temperature is {asked.temperature}: log-probabilities are the model's own, those of"
            " 1; leave temperature out",
            param="temperature",
        )


def _scores_prompt(asked: CompletionRequest) -> bool:
    return bool(asked.echo) and asked.logprobs is not None


def _output(asked: CompletionRequest, vocab_size: int) -> Output[Value]:
    """vocab_size: there are no more candidates."""
    top_k = min(max(1, asked.logprobs or 0), vocab_size)
    return ScoredPrompts(top_k) if _scores_prompt(asked) else TopLogits("last", top_k)


class Candidates(NamedTuple):
    """The likeliest tokens at some places, each `[n, k]`."""

    token_ids: Ints
    logprobs: Floats


class Choice(NamedTuple):
    """One prompt's answer, before it is text."""

    ids: list[int]  # of the prompt and the new token, if it is asked for
    num_shown: int  # of them, from the last
    logprobs: Floats  # of those shown, where they are asked for; NaN for a prompt's first
    candidates: Candidates  # for the last tokens shown


def _choice(asked: CompletionRequest, index: int, response: InferenceResponse) -> Choice:
    prompt = response.request.batch.sequence(index).tokens.tolist()
    if not _scores_prompt(asked):
        top, this = response.value(TopLogits), slice(index, index + 1)
        token_ids, logprobs = top.token_ids.joined[this], top.logprobs.joined[this]
        ids = [*prompt, int(token_ids[0, 0])]
        num_shown = len(ids) if asked.echo else 1
        return Choice(ids, num_shown, logprobs[:, 0], Candidates(token_ids, logprobs))
    scored = response.value(ScoredPrompts)
    own_logprobs = scored.own.rows[index]
    token_ids, logprobs = scored.next.token_ids.rows[index], scored.next.logprobs.rows[index]
    if not asked.max_tokens:
        candidates = Candidates(token_ids[:-1], logprobs[:-1])
        return Choice(prompt, len(prompt), own_logprobs, candidates)
    ids = [*prompt, int(token_ids[-1, 0])]
    own = np.append(own_logprobs, logprobs[-1, 0])
    return Choice(ids, len(ids), own, Candidates(token_ids, logprobs))


def _words(
    asked: CompletionRequest, request_id: str, response: InferenceResponse
) -> dict[str, Any]:
    request = response.request
    num_tokens, num = request.batch.num_tokens, len(request.batch)
    num_new = num * (asked.max_tokens or 0)
    return {
        "id": f"cmpl-{request_id}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": request.model.answered_name,
        "system_fingerprint": request.fingerprint,
        "choices": (_written(asked, index, response) for index in range(num)),
        "usage": {
            "prompt_tokens": num_tokens,
            "completion_tokens": num_new,
            "total_tokens": num_tokens + num_new,
        },
    }


def _written(asked: CompletionRequest, index: int, response: InferenceResponse) -> dict[str, Any]:
    """One choice as JSON."""
    tokenizer = response.request.model.tokenizer
    library = tokenizer.library if tokenizer else None
    choice = _choice(asked, index, response)
    start = len(choice.ids) - choice.num_shown
    texts = scoring.texts_of([*choice.ids, *choice.candidates.token_ids.flat], library)
    text, begins = scoring.joined(choice.ids, texts, library)
    logprobs = None
    if asked.logprobs is not None:
        logprobs = {
            "tokens": [texts[token] for token in choice.ids[start:]],
            "token_logprobs": choice.logprobs,
            "top_logprobs": _top_logprobs(choice, asked.logprobs, texts),
            "text_offset": begins[start:],
        }
    return {
        "index": index,
        "text": text[begins[start] :],
        "logprobs": logprobs,
        "finish_reason": "length",
    }


def _top_logprobs(choice: Choice, num: int, texts: dict[int, str]) -> list[Any]:
    """num: of the likeliest at each place."""
    token_ids, logprobs = choice.candidates
    first = len(choice.logprobs) - len(token_ids)  # a prompt's first token has no candidates
    own = zip(choice.ids[-choice.num_shown :], choice.logprobs, strict=True)
    return [
        None
        if place < first
        else scoring.likely(
            token, token_ids[place - first, :num], logprobs[place - first, :num], texts
        )
        for place, token in enumerate(own)
    ]


ROUTE = Route(
    path="/v1/completions",
    name="completions",
    summary="Log-probabilities of prompts, as OpenAI's clients ask for them",
    body=CompletionRequest,
    decode=score,
    response=CompletionResponse,
    examples=EXAMPLES,
)
