"""vLLM's routes for tokens, and those of its pooling models."""

from addnorm.service.dialects.vllm import vllm_pooling, vllm_tokens
from addnorm.service.wire.dialect_errors import OPENAI_ERRORS
from addnorm.service.wire.route import Protocol

PROTOCOL = Protocol(
    tag="vLLM",
    reference="https://docs.vllm.ai/",
    routes=(*vllm_pooling.ROUTES, vllm_tokens.ROUTE, *vllm_tokens.ABOUT),
    errors=OPENAI_ERRORS,
)
