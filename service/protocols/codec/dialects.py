"""Dialects that share a path: one field of the body tells them apart."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel

from addnorm.service.errors import InvalidInput
from addnorm.service.protocols.codec.decoding import RawRequest, Tools
from addnorm.service.protocols.codec.negotiation import JSON, negotiated, require_json
from addnorm.service.telemetry.request_context import Envelope


class Dialect(NamedTuple):
    """What one of them makes of a body that has its field."""

    body: type[BaseModel]
    envelope: Envelope
    decoded: Callable[[Any, RawRequest, Tools], Awaitable[Any]]  # of the body as its model


async def decode(dialects: Mapping[str, Dialect], raw: RawRequest, tools: Tools) -> Any:
    """What the first dialect makes of the body whose field it has. Errors have its envelope from
    there on. InvalidInput names the fields if the body has none of them."""
    require_json(raw.headers)
    negotiated(raw.headers, (JSON,))
    value = await tools.bodies.read_object(raw.body, raw.deadline)
    field = next((field for field in dialects if field in value), None)
    if field is None:
        raise InvalidInput(f"{' or '.join(dialects)} is missing: one of them tells the dialect")
    dialect = dialects[field]
    raw.context.envelope = dialect.envelope
    asked = await tools.bodies.fit(dialect.body, value, len(raw.body), raw.deadline)
    return await dialect.decoded(asked, raw, tools)
