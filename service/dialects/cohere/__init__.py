"""Cohere's rerank and embeddings, in the words of all who speak them."""

from addnorm.service.dialects.cohere import cohere_embed, cohere_rerank
from addnorm.service.wire.dialect_errors import COHERE_ERRORS
from addnorm.service.wire.route import Protocol

PROTOCOL = Protocol(
    tag="Cohere",
    reference="https://docs.cohere.com/reference/about",
    routes=(*cohere_rerank.ROUTES, *cohere_embed.ROUTES),
    errors=COHERE_ERRORS,
)
