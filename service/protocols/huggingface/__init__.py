"""What `huggingface_hub.InferenceClient` asks for."""

from addnorm.service.protocols.dialect_errors import HUGGING_FACE_ERRORS
from addnorm.service.protocols.huggingface import inference_client
from addnorm.service.protocols.route import Protocol

PROTOCOL = Protocol(
    tag="Hugging Face",
    reference="https://huggingface.co/docs/huggingface_hub/package_reference/inference_client",
    routes=(*inference_client.ROUTES, inference_client.HEALTH),
    errors=HUGGING_FACE_ERRORS,
)
