"""/v1/completions' bodies as types: what requests are checked against, and what is documented."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from addnorm.service.protocols.codec.validation import Strict
from addnorm.service.protocols.texts.sequences import Sequences
from addnorm.service.runtime.manifest import Precision

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
