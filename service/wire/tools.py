"""The tools that every protocol's `decode` reads a request with."""

from typing import NamedTuple

from addnorm.service.asking.answer import Answers
from addnorm.service.engine.registry import Models
from addnorm.service.wire.codec.decoding import BodyReader
from addnorm.service.wire.texts.texts import TextReader


class Tools(NamedTuple):
    """Shared by all requests."""

    models: Models
    bodies: BodyReader
    texts: TextReader
    answers: Answers
