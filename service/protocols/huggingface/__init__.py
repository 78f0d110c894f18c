"""What `huggingface_hub.InferenceClient` asks for."""

from addnorm.service.protocols.dialect_errors import HUGGING_FACE_ERRORS
from addnorm.service.protocols.huggingface import inference_client
from addnorm.service.protocols.protocol import OtherRoutes, Protocol
from addnorm.service.protocols.routes.inference_route import Inferring

PROTOCOL = Protocol(
    tag="Hugging Face",
    reference="https://huggingface.co/docs/huggingface_hub/package_reference/inference_client",
    routes=(
        Inferring(*inference_client.ENDPOINTS),
        OtherRoutes(inference_client.HealthRoutes),
    ),
    errors=HUGGING_FACE_ERRORS,
)
