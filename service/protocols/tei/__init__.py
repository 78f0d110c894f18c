"""text-embeddings-inference's routes, and the paths that other dialects share with it."""

from addnorm.service.protocols.dialect_errors import TEI_ERRORS
from addnorm.service.protocols.protocol import OtherRoutes, Protocol
from addnorm.service.protocols.routes.body_route import Answering
from addnorm.service.protocols.routes.inference_route import Inferring
from addnorm.service.protocols.tei import shared_paths, short_paths, tei_tasks, tei_tokens, vertex
from addnorm.service.protocols.tei.tei_about import TeiAboutRoutes

PROTOCOL = Protocol(
    tag="text-embeddings-inference",
    routes=(
        Inferring(
            *tei_tasks.ENDPOINTS,
            shared_paths.RERANK_ENDPOINT,
            *short_paths.ENDPOINTS,
            vertex.ENDPOINT,
            *shared_paths.OF_MODEL_ENDPOINTS,
        ),
        Answering(
            shared_paths.TOKENIZE_ENDPOINT, tei_tokens.ENDPOINT, shared_paths.TOKENIZE_OF_MODEL
        ),
        OtherRoutes(TeiAboutRoutes),
    ),
    errors=TEI_ERRORS,
    scopes={"/health": None, "/ping": None},
    health=("/health", "/ping"),
)
