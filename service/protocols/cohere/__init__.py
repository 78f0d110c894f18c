"""Cohere's rerank and embeddings, in the words of all who speak them."""

from addnorm.service.protocols.cohere import cohere_embed, cohere_rerank
from addnorm.service.protocols.dialect_errors import COHERE_ERRORS
from addnorm.service.protocols.protocol import Protocol
from addnorm.service.protocols.routes.inference_route import Inferring

PROTOCOL = Protocol(
    tag="Cohere",
    reference="https://docs.cohere.com/reference/about",
    routes=(Inferring(*cohere_rerank.ENDPOINTS, *cohere_embed.ENDPOINTS),),
    errors=COHERE_ERRORS,
)
