"""InferenceResponse -> the native protocol's JSON and safetensors."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from addnorm.service.inference.outputs import NO_TOKEN, ByLayer, SparseVectors, TopK
from addnorm.service.inference.request import InferenceResponse
from addnorm.service.protocols.codec import safetensors_body as tensors
from addnorm.service.protocols.codec.negotiation import written
from addnorm.service.protocols.codec.payload import Payload
from addnorm.service.protocols.codec.safetensors_body import SAFETENSORS, Arrays
from addnorm.service.scheduling.cooperative import Steps


def encode(response: InferenceResponse) -> Steps[Payload]:
    """InferenceResponse -> JSON, floats with the fewest digits that give the same float back."""
    request = response.request
    usage = {"real_tokens": request.batch.num_tokens, "pad_tokens": request.padding.num_pads}
    body = {
        "model": request.model.name,
        "version": str(request.model.bundle.manifest.version),
        **{name: _for_json(output) for name, output in response.outputs.items()},
        "usage": usage,
    }
    return Payload((yield from written(body, response.num_bytes)))


def _for_json(output: Any) -> Any:
    if isinstance(output, TopK):
        return _top_tokens(output)
    if isinstance(output, SparseVectors):
        entries = zip(*output, strict=True)
        return [{"indices": indices, "values": values} for indices, values in entries]
    if isinstance(output, ByLayer):
        return output.values
    return output


def _top_tokens(top: TopK) -> dict[str, Any]:
    """null at pads."""
    return {name: _or_null(top.token_ids, values) for name, values in top._asdict().items()}


def _or_null(token_ids: Any, values: Any) -> Any:
    """values `[..., k]`, null in place of those k where token_ids has none."""
    if isinstance(token_ids, list) or token_ids.ndim > 2:
        return [_or_null(ids, value) for ids, value in zip(token_ids, values, strict=True)]
    is_real = token_ids[:, 0] != NO_TOKEN
    if is_real.all():
        return values
    return [value if real else None for value, real in zip(values, is_real.tolist(), strict=True)]


def encode_tensors(response: InferenceResponse) -> Steps[Payload]:
    """InferenceResponse -> safetensors: ragged rows end to end, with their lengths."""
    yield
    request = response.request
    arrays: Arrays = {}
    for asked in request.outputs:
        name, output = asked.name, response.outputs[asked.name]
        parts = output._asdict() if isinstance(output, TopK | SparseVectors) else output
        if isinstance(output, ByLayer):
            parts = dict(zip(output.layers, output.values, strict=True))
        if isinstance(parts, dict):
            arrays |= {f"{name}.{part}": _joined(values) for part, values in parts.items()}
        else:
            arrays[name] = _joined(parts)
        if asked.has_own_lengths:
            rows = output.indices if isinstance(output, SparseVectors) else output
            arrays[f"{name}.lengths"] = np.array(list(map(len, rows)), np.int64)
        yield
    if request.padding.mask is None:
        arrays["lengths"] = request.padding.lengths
    metadata = {
        "model": request.model.name,
        "version": str(request.model.bundle.manifest.version),
        "real_tokens": str(request.batch.num_tokens),
        "pad_tokens": str(request.padding.num_pads),
    }
    return Payload(tensors.write(arrays, metadata), SAFETENSORS)


def _joined(values: Any) -> NDArray[Any]:
    """Rows end to end; attention, whose rows differ in two axes, as a list of its numbers."""
    if isinstance(values, list):
        return np.concatenate([row.reshape(-1) if row.ndim > 2 else row for row in values])
    array: NDArray[Any] = values
    return array
