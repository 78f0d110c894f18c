"""OpenAI's envelope of errors, which also the server's own routes use."""

from addnorm.service.errors import ServiceError
from addnorm.service.protocols.codec.openapi import ErrorBody, errors
from addnorm.service.protocols.endpoint import ErrorFormat


def error_body(error: ServiceError) -> dict[str, dict[str, str | None]]:
    return {
        "error": {
            "message": error.message,
            "type": error.type,
            "param": error.param,
            "code": error.code,
        }
    }


OPENAI_ERRORS = ErrorFormat(error_body, errors(ErrorBody, error_body))
