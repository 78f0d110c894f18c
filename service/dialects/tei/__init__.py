"""text-embeddings-inference's routes. `shared_paths.py` has those that other dialects share."""

from addnorm.service.dialects.tei import tei_about, tei_tasks, tei_tokens, vertex
from addnorm.service.wire.dialect_errors import TEI_ERRORS
from addnorm.service.wire.route import Protocol

PROTOCOL = Protocol(
    tag="text-embeddings-inference",
    reference="https://huggingface.github.io/text-embeddings-inference/",
    routes=(*tei_tasks.ROUTES, vertex.ROUTE, tei_tokens.ROUTE, *tei_about.ROUTES),
    errors=TEI_ERRORS,
    scopes={"/health": None, "/ping": None},
    health=("/health", "/ping"),
)
