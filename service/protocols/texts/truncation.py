"""How much of texts that are too long is kept, in the words of several dialects."""

from typing import Literal

from addnorm.service.errors import InvalidInput
from addnorm.service.models.registry import Model

Truncation = Literal["NONE", "START", "END"]  # Cohere's and NVIDIA's


def check_limit(field: str, sent: int | None, model: Model, whole: int | None = None) -> None:
    """InvalidInput if texts would have to be cut shorter than the model cuts them. whole: a number
    that stands for the model's own limit."""
    limit = model.bundle.manifest.limits.max_text_tokens
    if sent is not None and sent != whole and sent < limit:
        raise InvalidInput(
            f"{field} is {sent}: {model.bundle.ref} cuts texts to {limit} tokens, and to no other"
            " number: leave it out",
            param=field,
        )
