"""InferenceResponse -> the native protocol's JSON and safetensors."""

from addnorm.service.asking.request import InferenceResponse
from addnorm.service.protocols.codec import safetensors_body as tensors
from addnorm.service.protocols.codec.negotiation import written
from addnorm.service.protocols.codec.payload import Payload
from addnorm.service.protocols.codec.safetensors_body import SAFETENSORS, Arrays
from addnorm.service.engine.checkpoint import checkpoint


def encode(response: InferenceResponse) -> Payload:
    """InferenceResponse -> JSON, floats with the fewest digits that give the same float back."""
    request = response.request
    usage = {"real_tokens": request.batch.num_tokens, "pad_tokens": request.padding.num_pads}
    body = {
        "model": request.model.answered_name,
        "version": str(request.model.bundle.manifest.version),
        **{output.name: value.for_json() for output, value in response.values.items()},
        "usage": usage,
    }
    return Payload(written(body, response.num_bytes))


def encode_tensors(response: InferenceResponse) -> Payload:
    """InferenceResponse -> safetensors: ragged rows end to end, with their lengths."""
    request = response.request
    arrays: Arrays = {}
    for output, value in response.values.items():
        arrays |= value.tensors(output.name)
        checkpoint()
    if request.padding.mask is None:
        arrays["lengths"] = request.padding.lengths
    metadata = {
        "model": request.model.answered_name,
        "version": str(request.model.bundle.manifest.version),
        "real_tokens": str(request.batch.num_tokens),
        "pad_tokens": str(request.padding.num_pads),
    }
    return Payload(tensors.write(arrays, metadata), SAFETENSORS)
