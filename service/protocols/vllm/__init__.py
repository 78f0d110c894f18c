"""vLLM's routes for tokens, and those of its pooling models."""

from addnorm.service.protocols.dialect_errors import OPENAI_ERRORS
from addnorm.service.protocols.protocol import OtherRoutes, Protocol
from addnorm.service.protocols.routes.body_route import Answering
from addnorm.service.protocols.routes.inference_route import Inferring
from addnorm.service.protocols.vllm import vllm_pooling, vllm_tokens

PROTOCOL = Protocol(
    tag="vLLM",
    reference="https://docs.vllm.ai/",
    routes=(
        Inferring(*vllm_pooling.ENDPOINTS),
        Answering(vllm_tokens.ENDPOINT),
        OtherRoutes(vllm_tokens.TokenizerInfoRoutes),
    ),
    errors=OPENAI_ERRORS,
)
