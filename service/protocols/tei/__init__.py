"""text-embeddings-inference's routes. `shared_paths.py` has those that other dialects share."""

from addnorm.service.protocols.dialect_errors import TEI_ERRORS
from addnorm.service.protocols.protocol import OtherRoutes, Protocol
from addnorm.service.protocols.routes.body_route import Answering
from addnorm.service.protocols.routes.inference_route import Inferring
from addnorm.service.protocols.tei import tei_tasks, tei_tokens, vertex
from addnorm.service.protocols.tei.tei_about import TeiAboutRoutes

PROTOCOL = Protocol(
    tag="text-embeddings-inference",
    reference="https://huggingface.github.io/text-embeddings-inference/",
    routes=(
        Inferring(*tei_tasks.ENDPOINTS, vertex.ENDPOINT),
        Answering(tei_tokens.ENDPOINT),
        OtherRoutes(TeiAboutRoutes),
    ),
    errors=TEI_ERRORS,
    scopes={"/health": None, "/ping": None},
    health=("/health", "/ping"),
)
