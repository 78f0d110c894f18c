"""What is served: models, and what was proved of them."""

from addnorm.service.protocols.dialect_errors import OPENAI_ERRORS
from addnorm.service.protocols.models.model_list import ModelListRoutes
from addnorm.service.protocols.protocol import OtherRoutes, Protocol

PROTOCOL = Protocol(
    tag="models",
    routes=(OtherRoutes(ModelListRoutes),),
    errors=OPENAI_ERRORS,
)
