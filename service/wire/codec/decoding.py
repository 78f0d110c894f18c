"""What every protocol's `decode` gets: the request as it was sent, and the tools to read it."""

from typing import NamedTuple

from addnorm.service.engine.registry import Models
from addnorm.service.wire.codec.bodies import BodyReader
from addnorm.service.wire.codec.negotiation import Headers
from addnorm.service.wire.texts.texts import TextReader


class Tools(NamedTuple):
    """Shared by all requests."""

    models: Models
    bodies: BodyReader
    texts: TextReader


class RawRequest(NamedTuple):
    """A request before it is decoded."""

    body: bytes  # decompressed
    headers: Headers
