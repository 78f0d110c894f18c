"""Ollama's embeddings, and what it says of its models."""

from addnorm.service.protocols.dialect_errors import OLLAMA_ERRORS
from addnorm.service.protocols.ollama import ollama_embed
from addnorm.service.protocols.ollama.ollama_models import (
    PULL_ENDPOINT,
    SHOW_ENDPOINT,
    OllamaRoutes,
)
from addnorm.service.protocols.protocol import OtherRoutes, Protocol
from addnorm.service.protocols.routes.body_route import Answering
from addnorm.service.protocols.routes.inference_route import Inferring

PROTOCOL = Protocol(
    tag="Ollama",
    reference="https://github.com/ollama/ollama/blob/main/docs/api.md",
    routes=(
        Inferring(*ollama_embed.ENDPOINTS),
        Answering(SHOW_ENDPOINT, PULL_ENDPOINT),
        OtherRoutes(OllamaRoutes),
    ),
    errors=OLLAMA_ERRORS,
    beginning="/api/",
)
