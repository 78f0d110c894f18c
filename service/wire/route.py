"""A protocol: the rows of all that the server has of one dialect. `table.py` finds a row by its
path, `serving.py` answers what is sent to it.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel
from starlette.requests import Request

from addnorm.service.asking.answer import Answers
from addnorm.service.asking.ask import Ask, Envelope
from addnorm.service.asking.readiness import Readiness
from addnorm.service.asking.turns import Turns
from addnorm.service.engine.registry import Models
from addnorm.service.loading.repository import Repository
from addnorm.service.settings import Settings
from addnorm.service.wire.codec.negotiation import JSON
from addnorm.service.wire.codec.openapi import (
    DEADLINE,
    Responses,
    by_name,
    examples,
    json_body,
)
from addnorm.service.wire.dialect_errors import ErrorFormat
from addnorm.service.wire.telemetry.exposition import Exposition
from addnorm.service.wire.tools import Tools

Scope = Literal["infer", "admin", "metrics"]
# the body as its type -> how its answer is encoded; a route that does not infer makes a Payload, or
# JSON as bytes
Decode = Callable[[Any, Ask, Tools], Awaitable[Any]]
ASK = "ask"  # in the state of an ASGI scope, as long as it is answered
PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")


class OneOf(NamedTuple):
    """One of the dialects that share a path."""

    body: type[BaseModel]
    envelope: Envelope
    decode: Decode


@dataclass(frozen=True, kw_only=True)
class Route:
    """A row: what is sent to a path by POST, and the function that makes a request of it.

    decode: a function that fills the ask, or by the name of a field: the first that a body has
    tells which of several dialects is meant. body: what is documented, and read unless a field
    decides. reads: JSON alone; JSON whatever media type is named, for clients of which some name
    none, as curl; or the function reads bytes itself. infers: False: the function makes the answer.
    is_ours: whether the API is our own, which rejects fields that the body does not have; those of
    others leave them out. keeps_nulls: whether a null within a field is a value, as its key may be
    the caller's own.
    examples, answers: bodies and answers by title. media_types: of bodies and answers, beside JSON;
    answer_types: of answers alone. errors: None: the dialect's. documented: arguments of FastAPI's
    in place of those made here.
    """

    path: str
    name: str  # what generated clients call it
    summary: str
    body: type[BaseModel]
    decode: Decode | Mapping[str, OneOf]
    reads: Literal["json", "any", "bytes"] = "json"
    infers: bool = True
    is_ours: bool = False
    keeps_nulls: bool = False
    response: Any = None
    examples: Mapping[str, Any] = field(default_factory=dict)
    answers: Mapping[str, Any] = field(default_factory=dict)
    media_types: Mapping[str, Any] = field(default_factory=dict)
    answer_types: Mapping[str, Any] = field(default_factory=dict)
    errors: ErrorFormat | None = None
    documented: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def path_format(self) -> str:
        """The route's name in the report, as Starlette's routes have it."""
        return PARAMETER.sub(r"{\1}", self.path)

    def documentation(self, errors: ErrorFormat) -> dict[str, Any]:
        """Arguments for FastAPI's `add_api_route`. errors: the dialect's."""
        responses = (self.errors or errors).documented
        example_content = {JSON: {"examples": examples(self.answers)}} if self.answers else {}
        if content := {**example_content, **self.media_types, **self.answer_types}:
            responses = {200: {"content": content}, **responses}
        path_parameters = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in PARAMETER.findall(self.path)
        ]
        # the place of the parameters, which the document keeps
        operation: dict[str, Any] = {"parameters": path_parameters} if path_parameters else {}
        operation |= json_body(self.body, self.examples, self.is_ours, **self.media_types)
        operation["parameters"] = [*path_parameters, DEADLINE]
        return {
            "endpoint": nothing_calls_it,
            "methods": ["POST"],
            "name": self.name,
            "summary": self.summary,
            "response_model": self.response,
            "responses": responses,
            "openapi_extra": operation,
            "generate_unique_id_function": by_name,
            **self.documented,
        }


async def nothing_calls_it() -> None:
    # no docstring, as FastAPI would show it
    raise AssertionError("a row of the table is served by it")


@dataclass(frozen=True)
class Parts:
    """All that requests are answered with."""

    settings: Settings
    tools: Tools
    answers: Answers
    readiness: Readiness
    repository: Repository
    exposition: Exposition
    readers: Turns  # where large responses are made

    @property
    def models(self) -> Models:
        return self.tools.models


@dataclass(frozen=True)
class PlainRoute:
    """A row whose function takes the request as it came: it has no body, or the function reads it.

    answer: takes the request, and the path's parameters by name; makes a response, or what is sent
    as JSON; `parts_of` gives it the server's parts. summary: None: not documented. name: what
    generated clients call it; None: what FastAPI makes of the function's and the path. documented:
    more arguments of FastAPI's.
    """

    path: str
    answer: Callable[..., Any]
    summary: str | None = None
    errors: Responses = field(default_factory=dict)
    name: str | None = None
    method: Literal["GET", "POST"] = "GET"
    documented: Mapping[str, Any] = field(default_factory=dict)

    def documentation(self, errors: ErrorFormat) -> dict[str, Any]:
        """Arguments for FastAPI's `add_api_route`."""
        naming = {"name": self.name, "generate_unique_id_function": by_name} if self.name else {}
        return {
            "endpoint": self.answer,
            "methods": [self.method],
            "summary": self.summary,
            "responses": self.errors,
            "include_in_schema": self.summary is not None,
            **naming,
            **self.documented,
        }


def parts_of(request: Request) -> Parts:
    """The server's, for the function of a plain route."""
    parts: Parts = request.app.state.parts
    return parts


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """One dialect: `PROTOCOLS` of `table.py` are those that are served."""

    tag: str  # of the documentation
    routes: tuple[Route | PlainRoute, ...]  # in the documentation's order
    errors: ErrorFormat
    reference: str = ""  # the page of who made the dialect, which describes its answers
    beginning: str = ""  # of paths that are this dialect's, also those that are not served
    # of API keys: what a path needs that is not `infer`; `/a/*` is all below /a/, `GET /a` is by
    # this method alone. None: nothing
    scopes: Mapping[str, Scope | None] = field(default_factory=dict)
    # beginnings of paths that orchestrators ask: answered while draining and over the connection
    # limit, not traced; health checks that succeed are not logged either
    health: tuple[str, ...] = ()
    other_probes: tuple[str, ...] = ()
