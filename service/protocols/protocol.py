"""A protocol: all that the server has of one dialect."""

import typing
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute

from addnorm.service.inference.request_path import RequestPath
from addnorm.service.loading.repository import Repository
from addnorm.service.models.readiness import Readiness
from addnorm.service.models.registry import Models
from addnorm.service.protocols.codec.decoding import Tools
from addnorm.service.protocols.dialect_errors import ErrorFormat
from addnorm.service.protocols.endpoint import Endpoint, Made
from addnorm.service.protocols.routes.receiving import BodyReceiver
from addnorm.service.scheduling.turns import Turns
from addnorm.service.settings import Settings
from addnorm.service.telemetry.exposition import Exposition
from addnorm.service.telemetry.request_context import Envelope

Scope = Literal["infer", "admin", "metrics"]
Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class Parts:
    """What routes are made of."""

    settings: Settings
    tools: Tools
    receiver: BodyReceiver
    request_path: RequestPath
    readiness: Readiness
    repository: Repository
    exposition: Exposition
    readers: Turns  # where large responses are made

    @property
    def models(self) -> Models:
        return self.tools.models


class Routes(ABC):
    """Some of a protocol's routes, in the documentation's order."""

    endpoints: tuple[Endpoint[Any], ...] = ()

    @abstractmethod
    def router(self, parts: Parts, errors: ErrorFormat) -> APIRouter: ...


class EndpointRoutes(Routes, Generic[Made]):
    route_class: type[APIRoute] = APIRoute

    def __init__(self, *endpoints: Endpoint[Made]) -> None:
        self.endpoints = endpoints

    def router(self, parts: Parts, errors: ErrorFormat) -> APIRouter:
        router = APIRouter(route_class=self.route_class)
        for endpoint in self.endpoints:
            documented = endpoint.documentation((endpoint.errors or errors).documented)
            handle = self.handler(parts, endpoint)
            router.add_api_route(endpoint.path, handle, methods=["POST"], **documented)
        return router

    @abstractmethod
    def handler(self, parts: Parts, endpoint: Endpoint[Made]) -> Handler: ...


class HasRouter(typing.Protocol):
    def router(self) -> APIRouter: ...


@dataclass(frozen=True)
class OtherRoutes(Routes):
    """Routes that read no body, or not as endpoints do."""

    make: Callable[[Parts], HasRouter]

    def router(self, parts: Parts, errors: ErrorFormat) -> APIRouter:
        return self.make(parts).router()


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """One dialect: `all_protocols.py` lists those that are served."""

    tag: str  # of the documentation
    routes: tuple[Routes, ...]
    errors: ErrorFormat
    reference: str = ""  # the page of who made the dialect, which describes its answers
    beginning: str = ""  # of paths that are this dialect's, also those that are not served
    # of API keys: what a path needs that is not `infer`; `/a/*` is all below /a/, `GET /a` is by
    # this method alone. None: no key
    scopes: Mapping[str, Scope | None] = field(default_factory=dict)
    # beginnings of paths that orchestrators ask: answered while draining and over the connection
    # limit, not traced; health checks that succeed are not logged either
    health: tuple[str, ...] = ()
    other_probes: tuple[str, ...] = ()


class Mounted(NamedTuple):
    """A protocol with its routes."""

    protocol: Protocol
    routers: tuple[APIRouter, ...]

    @classmethod
    def of(cls, protocol: Protocol, parts: Parts) -> "Mounted":
        routers = (routes.router(parts, protocol.errors) for routes in protocol.routes)
        return cls(protocol, tuple(routers))

    def envelopes(self) -> Iterator[tuple[str, Envelope]]:
        """Error envelopes by the beginning of a path: what stands before its first parameter."""
        if self.protocol.beginning:
            yield self.protocol.beginning, self.protocol.errors.envelope
        for router in self.routers:
            for route in router.routes:
                assert isinstance(route, APIRoute)
                yield route.path.partition("{")[0], self.protocol.errors.envelope
        for routes in self.protocol.routes:
            for endpoint in routes.endpoints:
                if endpoint.errors:
                    yield endpoint.path, endpoint.errors.envelope


class Envelopes:
    """Which envelope the error of a path has: that of the protocol whose path it begins with, the
    longest one if there are several. All paths begin with the root, which has its own."""

    def __init__(self, mounted: Iterable[Mounted], default: Envelope) -> None:
        pairs = [pair for each in mounted for pair in each.envelopes()]
        self._root = next((envelope for path, envelope in pairs if path == "/"), default)
        found = {"": default} | {path: envelope for path, envelope in pairs if path != "/"}
        self._longest_first = sorted(found.items(), key=lambda pair: -len(pair[0]))

    def of(self, path: str) -> Envelope:
        if path == "/":
            return self._root
        return next(known for start, known in self._longest_first if path.startswith(start))


class Scopes:
    """Which scope of an API key a path needs: `infer` unless a protocol says otherwise."""

    def __init__(self, protocols: Iterable[Protocol]) -> None:
        named = {path: scope for each in protocols for path, scope in each.scopes.items()}
        below = sorted((path for path in named if path.endswith("/*")), key=len, reverse=True)
        self._below = [(path.removesuffix("*"), named.pop(path)) for path in below]
        self._exact = named

    def needed(self, method: str, path: str) -> Scope | None:
        """None: open to all."""
        if (by_method := f"{method} {path}") in self._exact:
            return self._exact[by_method]
        if path in self._exact:
            return self._exact[path]
        return next((scope for start, scope in self._below if path.startswith(start)), "infer")
