"""An endpoint: one POST route of a dialect, with its body's type, its documentation and its errors.

What it makes is either a request for an inference, with how its response is encoded, or the
response itself.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic import BaseModel

from addnorm.service.errors import InvalidInput
from addnorm.service.inference.request_path import Call, Prepared
from addnorm.service.protocols.codec.decoding import RawRequest, Tools
from addnorm.service.protocols.codec.negotiation import JSON, negotiate, require_json
from addnorm.service.protocols.codec.openapi import (
    DEADLINE,
    Responses,
    by_name,
    examples,
    json_body,
)
from addnorm.service.protocols.codec.payload import Payload
from addnorm.service.protocols.codec.validation import Body
from addnorm.service.protocols.dialect_errors import ErrorFormat
from addnorm.service.telemetry.request_context import Envelope

Made = TypeVar("Made")
Decoded = Prepared[Payload]  # what endpoints that infer make; others make JSON, as bytes
Make = Callable[[Any, Call, Tools], Awaitable[Made]]  # of the body as its type
PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")


@dataclass(frozen=True, kw_only=True)
class Endpoint(ABC, Generic[Made]):
    """examples, answers: bodies and answers by title. media_types: of bodies and answers, beside
    JSON; answer_types: of answers alone. errors: None: the dialect's."""

    path: str
    name: str  # what generated clients call it
    summary: str
    body: type[BaseModel]
    response: Any = None
    examples: Mapping[str, Any] = field(default_factory=dict)
    answers: Mapping[str, Any] = field(default_factory=dict)
    media_types: Mapping[str, Any] = field(default_factory=dict)
    answer_types: Mapping[str, Any] = field(default_factory=dict)
    errors: ErrorFormat | None = None

    @abstractmethod
    async def decode(self, raw: RawRequest, tools: Tools) -> Made:
        """InvalidInput names the field."""

    def documentation(self, errors: Responses) -> dict[str, Any]:
        """Arguments for FastAPI's `add_api_route`."""
        if self.answers or self.answer_types:
            shown = {JSON: {"examples": examples(self.answers)}} if self.answers else {}
            content = {**shown, **self.media_types, **self.answer_types}
            errors = {200: {"content": content}, **errors}
        return {
            "name": self.name,
            "summary": self.summary,
            "response_model": self.response,
            "responses": errors,
            "openapi_extra": self._request(),
            "generate_unique_id_function": by_name,
        }

    def _request(self) -> dict[str, Any]:
        own = self.path_parameters()
        described: dict[str, Any] = {"parameters": own} if own else {}
        described |= json_body(self.body, self.examples, **self.media_types)
        described["parameters"] = [*own, DEADLINE]
        return described

    def path_parameters(self) -> list[dict[str, Any]]:
        return [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in PARAMETER.findall(self.path)
        ]


@dataclass(frozen=True, kw_only=True)
class JsonEndpoint(Endpoint[Made], Generic[Body, Made]):
    """Takes and answers JSON. any_type: whatever media type the request names, for clients of which
    some name none, as curl."""

    body: type[Body]
    any_type: bool = False
    make: Callable[[Body, Call, Tools], Awaitable[Made]]

    async def decode(self, raw: RawRequest, tools: Tools) -> Made:
        if not self.any_type:
            require_json(raw.headers)
        negotiate(raw.headers, (JSON,))
        asked = await tools.bodies.read_json(self.body, raw.body, raw.call.deadline)
        return await self.make(asked, raw.call, tools)


class Variant(NamedTuple, Generic[Made]):
    """What one of the dialects that share a path makes of a body that has its field."""

    body: type[BaseModel]
    envelope: Envelope
    make: Make[Made]


@dataclass(frozen=True, kw_only=True)
class SharedEndpoint(Endpoint[Made], Generic[Made]):
    """A path that several dialects have: the field of the body tells which is meant. body: the
    union, for the documentation."""

    variants: Mapping[str, Variant[Made]]

    async def decode(self, raw: RawRequest, tools: Tools) -> Made:
        """Decodes by the first variant whose field the body has. Errors have its envelope from
        there on. InvalidInput names the fields if the body has none of them."""
        require_json(raw.headers)
        negotiate(raw.headers, (JSON,))
        deadline = raw.call.deadline
        value = await tools.bodies.read_object(raw.body, deadline)
        field = next((field for field in self.variants if field in value), None)
        if field is None:
            fields = " or ".join(self.variants)
            raise InvalidInput(f"{fields} is missing: one of them tells the dialect")
        variant = self.variants[field]
        raw.call.context.envelope = variant.envelope
        asked = await tools.bodies.fit(variant.body, value, len(raw.body), deadline)
        return await variant.make(asked, raw.call, tools)
