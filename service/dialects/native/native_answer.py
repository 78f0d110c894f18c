"""Outputs -> the native protocol's JSON and safetensors."""

from addnorm.service.asking.ask import Ask
from addnorm.service.engine.checkpoint import checkpoint
from addnorm.service.wire.codec import safetensors_body as tensors
from addnorm.service.wire.codec.negotiation import written
from addnorm.service.wire.codec.payload import Payload
from addnorm.service.wire.codec.safetensors_body import SAFETENSORS, Arrays


def encode(ask: Ask) -> Payload:
    """Outputs -> JSON, floats with the fewest digits that give the same float back."""
    usage = {"real_tokens": ask.batch.num_tokens, "pad_tokens": ask.padding.num_pads}
    body = {
        "model": ask.model.answered_name,
        "version": str(ask.model.bundle.manifest.version),
        **{output.name: value.for_json() for output, value in ask.values.items()},
        "usage": usage,
    }
    return Payload(written(body, ask.num_bytes))


def encode_tensors(ask: Ask) -> Payload:
    """Outputs -> safetensors: ragged rows end to end, with their lengths."""
    arrays: Arrays = {}
    for output, value in ask.values.items():
        arrays |= value.tensors(output.name)
        checkpoint()
    if ask.padding.mask is None:
        arrays["lengths"] = ask.padding.lengths
    metadata = {
        "model": ask.model.answered_name,
        "version": str(ask.model.bundle.manifest.version),
        "real_tokens": str(ask.batch.num_tokens),
        "pad_tokens": str(ask.padding.num_pads),
    }
    return Payload(tensors.write(arrays, metadata), SAFETENSORS)
