"""vLLM's routes for tokens."""

from addnorm.service.protocols.openai.openai_errors import OPENAI_ERRORS
from addnorm.service.protocols.protocol import OtherRoutes, Protocol
from addnorm.service.protocols.routes.body_route import Answering
from addnorm.service.protocols.vllm import vllm_tokens

PROTOCOL = Protocol(
    tag="vLLM",
    routes=(
        Answering(vllm_tokens.ENDPOINT),
        OtherRoutes(vllm_tokens.TokenizerInfoRoutes),
    ),
    errors=OPENAI_ERRORS,
)
