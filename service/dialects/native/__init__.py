"""The native routes under /v1: every output of a model, and tasks over texts."""

from addnorm.service.dialects.native import native_infer, text_routes
from addnorm.service.dialects.native.native_infer import INFER, Bodies
from addnorm.service.wire.dialect_errors import OPENAI_ERRORS
from addnorm.service.wire.route import Protocol


def protocol(bodies: Bodies) -> Protocol:
    """bodies: of /v1/infer."""
    return Protocol(
        tag="inference",
        routes=(native_infer.route(bodies), *text_routes.ROUTES),
        errors=OPENAI_ERRORS,
    )


PROTOCOL = protocol(INFER)
