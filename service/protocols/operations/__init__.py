"""For operators, orchestrators and people: probes, metrics, the documentation and the pages."""

from fastapi import APIRouter

from addnorm.service.protocols.openai.openai_errors import OPENAI_ERRORS
from addnorm.service.protocols.operations.pages import PageRoutes
from addnorm.service.protocols.operations.probes import OperationsRoutes
from addnorm.service.protocols.protocol import OtherRoutes, Parts, Protocol


def _probes(parts: Parts) -> APIRouter:
    return OperationsRoutes(parts.readiness, parts.exposition, parts.readers).router()


def _pages(parts: Parts) -> APIRouter:
    needs_key = bool(parts.settings.api_keys or parts.settings.api_keys_file)
    return PageRoutes(parts.tools.models, needs_key).router()


# orchestrators have no key, and the pages themselves hold nothing private: what they show they ask
# for, with the key that their reader types
OPEN = ("/livez", "/readyz", "/docs", "/openapi.json", "/swagger/*", "/", "/page/*", "/models/*")
PROTOCOL = Protocol(
    tag="operations",
    routes=(OtherRoutes(_probes), OtherRoutes(_pages)),
    errors=OPENAI_ERRORS,
    scopes={**dict.fromkeys(OPEN), "/metrics": "metrics"},
    health=("/livez", "/readyz"),
    other_probes=("/metrics",),
)
