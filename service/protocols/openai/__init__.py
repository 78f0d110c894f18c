"""OpenAI's embeddings, with Azure's paths of them, and its completions for scoring."""

from addnorm.service.protocols.dialect_errors import OPENAI_ERRORS
from addnorm.service.protocols.openai import completions, embeddings
from addnorm.service.protocols.protocol import Protocol
from addnorm.service.protocols.routes.inference_route import Inferring

PROTOCOL = Protocol(
    tag="inference",
    reference="https://platform.openai.com/docs/api-reference/embeddings",
    routes=(Inferring(*embeddings.ENDPOINTS, completions.ENDPOINT),),
    errors=OPENAI_ERRORS,
)
# its clients send the key in the header `api-key`
AZURE = Protocol(
    tag="Azure",
    reference="https://learn.microsoft.com/azure/ai-services/openai/reference",
    routes=(Inferring(*embeddings.OF_AZURE),),
    errors=OPENAI_ERRORS,
)
