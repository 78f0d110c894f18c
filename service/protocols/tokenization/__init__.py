"""The tokens of texts, without an inference."""

from addnorm.service.protocols.dialect_errors import OPENAI_ERRORS
from addnorm.service.protocols.route import Protocol
from addnorm.service.protocols.tokenization import tokenization

PROTOCOL = Protocol(tag="inference", routes=(tokenization.ROUTE,), errors=OPENAI_ERRORS)
