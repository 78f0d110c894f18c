"""The one place that turns an exception into an answer."""

import math

import orjson
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response

from addnorm.service.errors import (
    InternalError,
    MethodNotAllowed,
    NotFound,
    OutOfMemory,
    ServiceError,
)
from addnorm.service.protocols.codec.negotiation import JSON
from addnorm.service.protocols.codec.openapi import openai_error_body
from addnorm.service.protocols.cohere import cohere_embed
from addnorm.service.protocols.cohere import cohere_rerank as cohere
from addnorm.service.protocols.huggingface import inference_client as huggingface
from addnorm.service.protocols.kserve import schema as kserve
from addnorm.service.protocols.tei import shared_paths, tei_schema
from addnorm.service.telemetry.request_context import Envelope

STARLETTE = {404: NotFound, 405: MethodNotAllowed}  # what its routers raise


TEI_PATHS = ("/embed", "/similarity", "/predict", "/decode", "/info", "/health")

# by the first entry that the path begins with
ENVELOPES: tuple[tuple[str, Envelope], ...] = (
    ("/v1/embeddings", openai_error_body),
    *((path, cohere.error_body) for path in (*cohere.RERANK_PATHS, *cohere_embed.EMBED_PATHS)),
    ("/hf/", huggingface.error_body),
    ("/tokenizer_info", openai_error_body),
    *((path, shared_paths.error_body) for path in ("/rerank", "/tokenize")),
    *((path, tei_schema.error_body) for path in TEI_PATHS),
    ("/v2", kserve.error_body),
    ("", openai_error_body),
)


def error_response(path: str, error: ServiceError, envelope: Envelope | None) -> Response:
    """envelope: that of the request's protocol, where the path does not say which it is."""
    envelope = envelope or next(known for start, known in ENVELOPES if path.startswith(start))
    headers = dict(error.headers)
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    if error.ends_connection:
        headers["connection"] = "close"
    return Response(orjson.dumps(envelope(error)), error.status, headers, JSON)


def service_error(error: Exception, method: str, path: str, request_id: str) -> ServiceError:
    """What the caller is told of any exception."""
    if isinstance(error, ServiceError):
        return error
    if isinstance(error, MemoryError):
        return OutOfMemory()
    if isinstance(error, HTTPException) and (known := STARLETTE.get(error.status_code)):
        allowed = Headers(error.headers or {}).get("allow")
        what = f"send {allowed}" if allowed else "there is no such path; /docs lists all paths"
        return known(f"{method} {path}: {what}", headers=error.headers)
    return InternalError(request_id)
