"""Azure's paths of OpenAI's embeddings. Clients send the key in the header `api-key`."""

from addnorm.service.protocols.azure import azure_embeddings
from addnorm.service.protocols.dialect_errors import OPENAI_ERRORS
from addnorm.service.protocols.protocol import Protocol
from addnorm.service.protocols.routes.inference_route import Inferring

PROTOCOL = Protocol(
    tag="Azure", routes=(Inferring(*azure_embeddings.ENDPOINTS),), errors=OPENAI_ERRORS
)
