"""Texts that are too long: who decides whether they are cut, and where."""

from typing import Literal

from addnorm.service.engine.model import Model
from addnorm.service.errors import InvalidInput
from addnorm.service.wire.codec.decoding import Tools

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


def cuts(tools: Tools, sent: bool | None, by_default: bool = False) -> bool:
    """The request says so, or the setting, or by_default: what the route is modelled on does."""
    if sent is not None:
        return sent
    in_general = tools.texts.settings.truncate
    return by_default if in_general is None else in_general


def cuts_sequences(
    tools: Tools,
    sequences: list[str] | list[list[int]],
    sent: bool | None,
    by_default: bool = False,
) -> bool:
    """The same as `cuts` for texts. Token ids are never cut: what was sent for them is rejected."""
    if sequences and isinstance(sequences[0], str):
        return cuts(tools, sent, by_default)
    return bool(sent)
