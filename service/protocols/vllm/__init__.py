"""vLLM's routes for tokens, and those of its pooling models."""

from addnorm.service.protocols.dialect_errors import OPENAI_ERRORS
from addnorm.service.protocols.route import Protocol
from addnorm.service.protocols.vllm import vllm_pooling, vllm_tokens

PROTOCOL = Protocol(
    tag="vLLM",
    reference="https://docs.vllm.ai/",
    routes=(*vllm_pooling.ROUTES, vllm_tokens.ROUTE, *vllm_tokens.ABOUT),
    errors=OPENAI_ERRORS,
)
