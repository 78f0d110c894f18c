"""Formats of errors: a row for each dialect, and what is documented of it."""

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Annotated, Any, Literal, NamedTuple, Union

from pydantic import BaseModel, Field, RootModel, create_model

from addnorm.service.asking.ask import Envelope
from addnorm.service.errors import (
    BodyTooLarge,
    EmptyInput,
    Expired,
    InvalidInput,
    ModelNotFound,
    NotAcceptable,
    OutOfMemory,
    QueueFull,
    ServiceError,
    UnsupportedMediaType,
)
from addnorm.service.wire.codec.negotiation import JSON
from addnorm.service.wire.codec.openapi import Responses

SENT: dict[int, tuple[str, ServiceError]] = {  # status -> what it means, and one that is sent
    400: (
        "The request can be corrected: the message names field, limit and value.",
        InvalidInput(
            "the body is not a JSON object: unexpected end of data: line 1 column 2 (char 1)"
        ),
    ),
    404: (
        "No such model or version.",
        ModelNotFound(
            "model 'other' is not served here; served are: notebook; for clients whose name cannot"
            " be changed, set ADDNORM_ALIASES, or ADDNORM_ANY_MODEL_NAME=true",
            param="model",
        ),
    ),
    406: (
        "The header accept requires safetensors, which this route does not write.",
        NotAcceptable(
            "Accept is 'application/vnd.safetensors': send one of application/json", param="accept"
        ),
    ),
    413: (
        "The body is over its limit.",
        BodyTooLarge("the body has 16777217 bytes, the limit is 16777216"),
    ),
    415: (
        "The body's media type or coding is unknown.",
        UnsupportedMediaType("Content-Type is 'text/plain': send application/json"),
    ),
    429: (
        "The queue is full, or the deadline cannot be met. See Retry-After.",
        QueueFull(
            "overloaded: 65,000 tokens are queued of at most 65,536, too many to add 900; retry in"
            " 2 s"
        ),
    ),
    503: ("No memory for this request, or too many connections. See Retry-After.", OutOfMemory()),
    504: (
        "The deadline passed after the request was admitted.",
        Expired("deadline: no answer within 30 s: allow more time, or ask for less"),
    ),
}


class ErrorFormat(NamedTuple):
    """Tells of errors as a dialect does. body: the type of what the envelope makes."""

    envelope: Envelope
    body: type[BaseModel]
    documented: Responses

    def only(self, *statuses: int) -> Responses:
        """The documentation of a route that has no other statuses."""
        return {status: self.documented[status] for status in statuses}


def error_format(name: str, **fields: tuple[Any, Callable[[ServiceError], Any]]) -> ErrorFormat:
    """fields: of the body, each with its type and how it is read from an error. name: of the type
    in the documentation."""

    def envelope(error: ServiceError) -> dict[str, Any]:
        return {field: value(error) for field, (_, value) in fields.items()}

    types: dict[str, Any] = {field: (kind, ...) for field, (kind, _) in fields.items()}
    return _build_format(envelope, create_model(name, **types))


def shared_format(name: str, until_read: ErrorFormat, *dialects: ErrorFormat) -> ErrorFormat:
    """A path that these dialects share: until its body tells which is meant, `until_read`."""
    either: Any = RootModel[Union[tuple(dialect.body for dialect in dialects)]]  # type: ignore[misc]  # noqa: UP007
    doc = "Once the body is read, the dialect's own."
    return _build_format(until_read.envelope, create_model(name, __base__=either, __doc__=doc))


def _build_format(envelope: Envelope, body: type[BaseModel]) -> ErrorFormat:
    """SENT, as the envelope has it."""
    documented: Responses = {
        status: {
            "model": body,
            "description": meaning,
            "content": {JSON: {"example": envelope(error)}},
        }
        for status, (meaning, error) in SENT.items()
    }
    return ErrorFormat(envelope, body, documented)


class Error(BaseModel):
    message: str
    type: str
    param: str | None = None
    code: str


def _openais(error: ServiceError) -> dict[str, str | None]:
    return {"message": error.message, "type": error.type, "param": error.param, "code": error.code}


def _teis_type(error: ServiceError) -> str:
    """One of text-embeddings-inference's names."""
    if isinstance(error, EmptyInput):
        return "Empty"
    by_status = {429: "Overloaded", 503: "Unhealthy"}
    return by_status.get(error.status, "Validation" if error.status < 500 else "Backend")


MESSAGE = str, attrgetter("message")
TEIS_TYPE = (
    Literal["Unhealthy", "Backend", "Overloaded", "Validation", "Tokenizer", "Empty"],
    _teis_type,
)
AGAIN = Annotated[str, Field(description="The message again, where LangChain looks for it.")]

OPENAI_ERRORS = error_format("ErrorBody", error=(Error, _openais))  # and the server's own
COHERE_ERRORS = error_format("CohereError", message=MESSAGE)
HUGGING_FACE_ERRORS = error_format("HuggingFaceError", error=MESSAGE)
NVIDIA_ERRORS = error_format(
    "NvidiaError",
    object=(Literal["error"], lambda error: "error"),
    message=MESSAGE,
    type=(str, attrgetter("type")),
    detail=(AGAIN, attrgetter("message")),
)
OLLAMA_ERRORS = error_format("OllamaError", error=MESSAGE)
TEI_ERRORS = error_format("TeiError", error=MESSAGE, error_type=TEIS_TYPE)
V2_ERRORS = error_format("V2Error", error=MESSAGE)
V2_ERRORS.documented.update(
    {
        415: {"model": V2_ERRORS.body, "description": "The body's coding is none that is known."},
        "default": {"model": V2_ERRORS.body, "description": "Whatever else went wrong."},
    }
)


class Problem(BaseModel):
    loc: list[str]
    msg: str
    type: str


class Told(BaseModel):
    error_type: str
    message: str


def _typesafes(error: ServiceError) -> Any:
    """A list of what is wrong with the body, as FastAPI writes it, or one error of another kind."""
    if isinstance(error, InvalidInput):
        loc = ["body", *([error.param] if error.param else [])]
        return [{"loc": loc, "msg": error.message, "type": "value_error"}]
    return {"error_type": error.type, "message": error.message}


SYSTEM_ONE_ERRORS = error_format("SystemOneError", detail=(list[Problem] | Told, _typesafes))
SYSTEM_ONE_ERRORS.documented[422] = SYSTEM_ONE_ERRORS.documented.pop(400)
# by envelope: statuses that a dialect's clients expect in place of ours
STATUSES: Mapping[Envelope, Mapping[int, int]] = {SYSTEM_ONE_ERRORS.envelope: {400: 422}}
# where TEI's clients and others look for the message
TEI_OR_OTHERS = error_format("SharedError", error=MESSAGE, error_type=TEIS_TYPE, message=MESSAGE)
RERANK_ERRORS = shared_format(
    "RerankError", TEI_OR_OTHERS, TEI_OR_OTHERS, TEI_ERRORS, COHERE_ERRORS
)
TOKENIZE_ERRORS = shared_format(
    "TokenizeError", TEI_OR_OTHERS, TEI_OR_OTHERS, TEI_ERRORS, OPENAI_ERRORS
)
ROOT_ERRORS = shared_format("RootError", TEI_ERRORS, TEI_ERRORS, HUGGING_FACE_ERRORS)
OF_MODEL_ERRORS = shared_format(
    "OfModelError",
    HUGGING_FACE_ERRORS,
    TEI_ERRORS,
    COHERE_ERRORS,
    OPENAI_ERRORS,
    HUGGING_FACE_ERRORS,
)
