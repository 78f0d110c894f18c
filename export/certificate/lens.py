"""Cases of the certificate for the lens: what it shows against PyTorch, and its bits against the
body's."""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from addnorm.export.certificate import tolerances
from addnorm.export.certificate.served import (
    Case,
    NamedCompare,
    NamedPairs,
    Pair,
    Served,
    case_named,
    cases,
)
from addnorm.model.transformer import Transformer

Array = NDArray[Any]
WHOLE = ("length 1", "ragged", "pads left", "pads holes")  # cases of which every layer is compared


def named_cases(path: Served, reference: Transformer) -> list[NamedCompare]:
    """Every case by name, as a function to be called with fp32; none without a lens."""
    if not path.model.bundle.has_lens:
        return []
    n_layers, last = reference.config.n_layers, reference.config.n_layers - 1
    comparisons = list[NamedCompare]()
    for case in cases(path.model.bundle.manifest.limits):
        name = f"lens, {case.name}"
        if case.name in WHOLE:
            compare = partial(_against_torch, path, case, reference, [*range(n_layers + 1)], None)
            comparisons.append((name, compare))
        elif case.name.startswith("maximum length"):
            comparisons.append((name, partial(_against_torch, path, case, reference, [last], [0])))
    return comparisons


def bits(path: Served, reference: Transformer) -> list[NamedPairs]:
    """Pairs whose bits must be equal on the CPU; nothing without a lens."""
    if not path.model.bundle.has_lens:
        return []
    return [("lens, its bits", partial(_bits, path, reference))]


def _against_torch(
    path: Served,
    case: Case,
    reference: Transformer,
    hidden_layers: list[int],
    heads: list[int] | None,
    precision: str,
) -> Iterator[tolerances.Result]:
    """Hidden states of some layers, and the attention of some heads in them; None: all heads."""
    n_layers, n_heads = reference.config.n_layers, reference.config.n_heads
    layers = [layer for layer in hidden_layers if layer < n_layers]
    heads_to_show = [*range(n_heads)] if heads is None else heads
    got = path.ask(
        case,
        precision,
        outputs=["hidden_states", "attentions"],
        hidden_states={"layers": hidden_layers},
        attentions={"layers": layers, "heads": heads_to_show},
    )
    grid = case.grid()
    ids, mask, types = (None if cells is None else torch.from_numpy(cells) for cells in grid)
    assert ids is not None
    assert mask is not None
    with torch.no_grad():  # hidden states `[B, S, d]` and attentions `[B, h, S, S]` of each layer
        hidden, maps = reference.lens(ids, mask, types, [torch.tensor(heads_to_show)] * n_layers)
    real = grid.attention_mask != 0
    if case.attention_mask is None:  # ragged rows
        parts = [np.array(row, np.float32) for layer in got["hidden_states"] for row in layer]
    else:
        parts = [np.array(layer, np.float32)[real] for layer in got["hidden_states"]]
    rows = np.concatenate(parts)
    expected = np.concatenate([hidden[layer].numpy()[real] for layer in hidden_layers])
    yield from tolerances.vectors("hidden_states", rows, expected, "fp32")
    served = np.concatenate([_real_maps(values, real, case) for values in got["attentions"]])
    expected_maps = np.concatenate([_real_maps(maps[layer].numpy(), real) for layer in layers])
    yield "attentions", tolerances.largest(served - expected_maps), tolerances.ABSOLUTE


def _real_maps(answer: Any, real: Array, case: Case | None = None) -> Array:
    """The numbers between real tokens of each sequence's maps, end to end.

    case: what was asked for; without a mask its rows are ragged.
    """
    parts = []
    for sequence_maps, mask in zip(answer, real, strict=True):
        maps = np.array(sequence_maps, np.float32)
        if case is None or case.attention_mask is not None:
            places = np.flatnonzero(mask)
            maps = maps[:, places[:, None], places]
        parts.append(maps.reshape(-1))
    return np.concatenate(parts)


def _bits(path: Served, reference: Transformer, precision: str) -> Mapping[str, Iterable[Pair]]:
    """Rows of the last layer, and those of the body, which ran in company. Each sequence is alone
    where the lens runs."""
    ragged = case_named(path.model.bundle.manifest.limits, "ragged")
    got = path.ask(
        ragged, precision, outputs=["activations", "hidden_states"],
        hidden_states={"layers": [reference.config.n_layers]},
    )  # fmt: skip
    pairs = zip(got["activations"], got["hidden_states"][0], strict=True)
    rows = [[np.array(rows, np.float64) for rows in pair] for pair in pairs]
    return {"rows unlike the body's": [([of_lens], [of_body]) for of_body, of_lens in rows]}
