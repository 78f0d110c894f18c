"""Ollama's embeddings, and what it says of its models."""

from addnorm.service.protocols.dialect_errors import OLLAMA_ERRORS
from addnorm.service.protocols.ollama import ollama_embed, ollama_models
from addnorm.service.protocols.route import Protocol

PROTOCOL = Protocol(
    tag="Ollama",
    reference="https://github.com/ollama/ollama/blob/main/docs/api.md",
    routes=(*ollama_embed.ROUTES, *ollama_models.ROUTES),
    errors=OLLAMA_ERRORS,
    beginning="/api/",
)
