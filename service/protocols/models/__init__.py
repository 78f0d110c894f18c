"""What is served: models, and what was proved of them."""

from addnorm.service.protocols.dialect_errors import OPENAI_ERRORS
from addnorm.service.protocols.models import model_list
from addnorm.service.protocols.route import Protocol

PROTOCOL = Protocol(
    tag="models",
    routes=model_list.ROUTES,
    errors=OPENAI_ERRORS,
)
