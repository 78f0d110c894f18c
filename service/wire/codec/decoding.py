"""A request as it was sent, and its body read in pieces that hold up nobody. Knows no sockets."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from addnorm.service.asking.answer import QUICK_BYTES
from addnorm.service.asking.ask import Ask
from addnorm.service.asking.turns import Arguments, Done, Turns
from addnorm.service.settings import Settings
from addnorm.service.wire.codec.foreign_fields import IgnoredFields
from addnorm.service.wire.codec.negotiation import Headers, decompress, sent_type
from addnorm.service.wire.codec.safetensors_body import SAFETENSORS
from addnorm.service.wire.codec.validation import Body, count_unlocked, fit, parse

MEDIUM_BYTES = 256 * 1024  # take about 10 ms, in pieces that hold up nobody; 8 MB have one of 40 ms
# What Python holds of JSON, about: for each value its object, and a place in a list and an array.
# Values of few digits are objects that all share.
VALUE_BYTES, VALUE_BYTES_PER_BYTE = 48, 9
SAFETENSORS_COPIES = 4  # the body, the library's, and of 32-bit ids one that is twice as large


class BodyReader:
    """Small bodies are read on the event loop: a change of threads would cost more."""

    def __init__(self, settings: Settings, readers: Turns, large_readers: Turns) -> None:
        """readers: where bodies are read; large_readers: those above MEDIUM_BYTES, so that others
        need not wait until a piece of theirs ends."""
        self.settings, self._readers, self._large_readers = settings, readers, large_readers
        self._ignored = IgnoredFields()

    async def read(
        self,
        num_bytes: int,
        ask: Ask,
        work: Callable[Arguments, Done],
        *args: Arguments.args,
        **options: Arguments.kwargs,
    ) -> Done:
        """The value that `work` makes of so many bytes."""
        if num_bytes <= QUICK_BYTES:
            return work(*args, **options)
        readers = self._readers if num_bytes <= MEDIUM_BYTES else self._large_readers
        return await readers.run(ask, work, *args, **options)

    async def plain(self, body: bytes, coding: str, ask: Ask) -> bytes:
        """The body decompressed. A few bytes may stand for many: how many is known only then."""
        max_bytes = self.settings.max_body_bytes
        plain = decompress(body, coding, max_bytes, stop_bytes=QUICK_BYTES)
        if plain is None:
            plain = await self._large_readers.run(ask, decompress, body, coding, max_bytes)
        return plain

    async def read_json(self, model: type[Body], body: bytes, ask: Ask) -> Body:
        """The body as the model. InvalidInput names the field that does not fit."""
        value = await self.read(len(body), ask, parse, body, self.settings)
        return await self.fit(model, value, ask, len(body))

    async def fit(self, model: type[Body], value: dict[str, Any], ask: Ask, num_bytes: int) -> Body:
        """The value read of so many bytes, as the model. InvalidInput names the field that does not
        fit, and on a route of ours one that the model does not have."""
        note = None if ask.ignored is None else partial(self._ignored.note, ask.ignored)
        return await self.read(num_bytes, ask, fit, model, value, note)


class RawRequest(NamedTuple):
    """A request before it is decoded."""

    body: bytes  # decompressed
    headers: Headers


def held_bytes(body: bytes, headers: Headers) -> int:
    """The bytes that a whole body and what is read of it count as."""
    if sent_type(headers) == SAFETENSORS:
        return SAFETENSORS_COPIES * len(body)
    return len(body) + parsed_bytes(body)  # whatever its name, it may be JSON


def parsed_bytes(body: bytes) -> int:
    """The bytes that Python will hold of the JSON beside the body itself, about. A comma in a
    string counts as one between values."""
    return min(VALUE_BYTES * count_unlocked(body, b","), VALUE_BYTES_PER_BYTE * len(body))
