"""NVIDIA's ranking. Its embeddings are OpenAI's path, with fields of their own."""

from addnorm.service.protocols.nvidia import ranking
from addnorm.service.protocols.protocol import Protocol
from addnorm.service.protocols.routes.inference_route import Inferring

PROTOCOL = Protocol(
    tag="NVIDIA NIM", routes=(Inferring(*ranking.ENDPOINTS),), errors=ranking.NVIDIA_ERRORS
)
