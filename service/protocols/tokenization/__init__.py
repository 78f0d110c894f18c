"""The tokens of texts, without an inference."""

from addnorm.service.protocols.dialect_errors import OPENAI_ERRORS
from addnorm.service.protocols.protocol import Protocol
from addnorm.service.protocols.routes.body_route import Answering
from addnorm.service.protocols.tokenization import tokenization

PROTOCOL = Protocol(
    tag="inference", routes=(Answering(tokenization.ENDPOINT),), errors=OPENAI_ERRORS
)
