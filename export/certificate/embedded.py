"""Texts to token ids and vectors: as they are served, and by PyTorch."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import orjson
import torch
from numpy.typing import NDArray

from addnorm.export.certificate.served import infer_body, run
from addnorm.export.sources.program import Ids
from addnorm.model.pooling import pick_vectors
from addnorm.model.transformer import Transformer
from addnorm.service.runtime.manifest import Manifest
from addnorm.service.server.wiring import Service

Array = NDArray[Any]
BATCH = 64  # texts that PyTorch is given at once


class Embedded(NamedTuple):
    """Texts, and a vector for each `[n, w]`."""

    ids: list[Ids]
    vectors: Array


def embed_by_server(
    service: Service, manifest: Manifest, texts: Sequence[Any], precision: str, **options: Any
) -> Embedded:
    """Texts or pairs as the server embeds them, cut to the limit of texts. options: of the request.
    ServiceError if it is rejected."""
    body = {
        "texts": texts,
        "outputs": ["pooled"],
        "truncate": True,
        "normalize": manifest.normalize,
        "precision": precision,
        **options,
    }
    answer, request = run(infer_body(service, body))
    batch = request.batch
    types = np.zeros_like(batch.tokens) if batch.types is None else batch.types
    rows = (np.split(values, batch.offsets[1:-1]) for values in (batch.tokens, types))
    ids = [Ids(*(row.tolist() for row in own)) for own in zip(*rows, strict=True)]
    return Embedded(ids, np.array(orjson.loads(answer)["pooled"]))


def by_torch(reference: Transformer, manifest: Manifest, texts: Sequence[Ids]) -> Array:
    """A vector for each of the texts `[n, w]`, in their order."""
    order = sorted(range(len(texts)), key=lambda index: len(texts[index].tokens))
    vectors = [
        _batch_by_torch(reference, manifest, [texts[index] for index in order[start:][:BATCH]])
        for start in range(0, len(texts), BATCH)
    ]
    made: Array = np.concatenate(vectors)[np.argsort(order)]
    return made


def _batch_by_torch(reference: Transformer, manifest: Manifest, texts: Sequence[Ids]) -> Array:
    width = max(len(ids.tokens) for ids in texts)
    tokens, types, mask = (torch.zeros(len(texts), width, dtype=torch.int64) for _ in range(3))
    for row, ids in enumerate(texts):
        tokens[row, : len(ids.tokens)] = torch.tensor(ids.tokens)
        types[row, : len(ids.types)] = torch.tensor(ids.types)
        mask[row, : len(ids.tokens)] = 1
    with torch.no_grad():
        rows = reference(tokens, mask, types)[0]
        if "pooled" in reference.heads:
            vectors = reference.head("pooled", rows, mask)
        else:
            vectors = pick_vectors(manifest.pooling, rows, mask != 0)
        if manifest.normalize:
            vectors = torch.nn.functional.normalize(vectors, dim=1)
    made: Array = vectors.numpy()
    return made
