"""The native routes under /v1: every output of a model, and tasks over texts."""

from addnorm.service.protocols.native import native_infer, text_routes
from addnorm.service.protocols.openai.openai_errors import OPENAI_ERRORS
from addnorm.service.protocols.protocol import Protocol
from addnorm.service.protocols.routes.inference_route import Inferring

PROTOCOL = Protocol(
    tag="inference",
    routes=(Inferring(native_infer.ENDPOINT, *text_routes.ENDPOINTS),),
    errors=OPENAI_ERRORS,
)
