"""For operators, orchestrators and people: probes, metrics, the documentation and the pages."""

from addnorm.service.dialects.operations import pages, probes
from addnorm.service.wire.dialect_errors import OPENAI_ERRORS
from addnorm.service.wire.route import Protocol

# orchestrators cannot say who they are, and the pages themselves hold nothing private: what they
# show they ask for in their reader's name
OPEN = (
    "/livez",
    "/readyz",
    "/docs",
    "/openapi.json",
    "/swagger/*",
    "GET /",
    "/page/*",
    "/models/*",
)
PROTOCOL = Protocol(
    tag="operations",
    routes=(*probes.ROUTES, *pages.ROUTES),
    errors=OPENAI_ERRORS,
    scopes={**dict.fromkeys(OPEN), "/metrics": "metrics"},
    health=("/livez", "/readyz"),
    other_probes=("/metrics",),
)
