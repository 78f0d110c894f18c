"""Who decides whether texts that are too long are cut."""

from addnorm.service.inference.request_path import Call
from addnorm.service.protocols.codec.decoding import Tools


def cuts(call: Call, tools: Tools, sent: bool | None, by_default: bool = False) -> bool:
    """The request says so, or its model's name, or the setting, or by_default: what the route is
    modelled on does."""
    if sent is not None:
        return sent
    if call.context.cuts_texts:
        return True
    in_general = tools.texts.settings.truncate
    return by_default if in_general is None else in_general


def cuts_sequences(
    call: Call,
    tools: Tools,
    sequences: list[str] | list[list[int]],
    sent: bool | None,
    by_default: bool = False,
) -> bool:
    """The same as `cuts` for texts. Token ids are never cut: what was sent for them is rejected."""
    if sequences and isinstance(sequences[0], str):
        return cuts(call, tools, sent, by_default)
    return bool(sent)
