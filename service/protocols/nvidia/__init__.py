"""NVIDIA's ranking, and a NIM's health. Its embeddings are OpenAI's path, with fields of their
own."""

from addnorm.service.protocols.dialect_errors import NVIDIA_ERRORS
from addnorm.service.protocols.nvidia import nim_health, ranking
from addnorm.service.protocols.route import Protocol

HEALTH = "/v1/health/"
PROTOCOL = Protocol(
    tag="NVIDIA NIM",
    reference="https://docs.nvidia.com/nim/nemo-retriever/text-reranking/latest/using-reranking.html",
    routes=(*ranking.ROUTES, *nim_health.ROUTES),
    errors=NVIDIA_ERRORS,
    scopes={f"{HEALTH}*": None},
    health=(HEALTH,),
)
