"""NVIDIA's ranking, and a NIM's health. Its embeddings are OpenAI's path, with fields of their
own."""

from addnorm.service.protocols.dialect_errors import NVIDIA_ERRORS
from addnorm.service.protocols.nvidia import ranking
from addnorm.service.protocols.nvidia.nim_health import NimHealthRoutes
from addnorm.service.protocols.protocol import OtherRoutes, Protocol
from addnorm.service.protocols.routes.inference_route import Inferring

HEALTH = "/v1/health/"
PROTOCOL = Protocol(
    tag="NVIDIA NIM",
    reference="https://docs.nvidia.com/nim/nemo-retriever/text-reranking/latest/using-reranking.html",
    routes=(Inferring(*ranking.ENDPOINTS), OtherRoutes(NimHealthRoutes)),
    errors=NVIDIA_ERRORS,
    scopes={f"{HEALTH}*": None},
    health=(HEALTH,),
)
