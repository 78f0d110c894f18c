"""A module beside the `Transformer` that it is found to be, both with weights drawn anew."""

from typing import Any

import torch
from torch import Tensor

from addnorm.export.modules.asking import Asking, as_inputs, drawn_ids, list_calls
from addnorm.export.modules.operators import lengths
from addnorm.export.modules.operators.ids import Told
from addnorm.export.modules.operators.parts import Unrecognized
from addnorm.export.sources.original import Array, Original
from addnorm.model.config import Pick
from addnorm.model.pooling import pick_vectors
from addnorm.model.transformer import Transformer

COMPARED = (1, 2, 19, 512)  # lengths of the sequences, if there, and the longest
AGREES = 1e-3  # of the largest number, of float32 through all layers
NEAR = 1e-5  # where the forward of a length is another than that of the longest


def pad_of(drawn: Transformer, ask: Asking, pooling: Pick, told: Told) -> int | None:
    """The id that the module tells from others. Unrecognized unless it is a pad: behind other
    tokens it changes no answer, but that some modules let tokens see it."""
    if not told.ids:
        return None
    named = ", ".join(f"{index} ({step.op}{step.where})" for index, step in told.ids.items())
    pad, *more = told.ids
    config = drawn.config
    length = min(5, config.max_positions - 2)
    if not more and length > 0:
        original = Original(ask, config, pooling, pad)
        row = [*drawn_ids(length, config.vocab_size, {pad}), pad, pad]
        ids, types = as_inputs(row, ask)
        expected = original.rows(row, None if types is None else types[0].tolist())
        real = torch.ones_like(ids)
        real[:, length:] = 0
        for seen in (real, torch.ones_like(ids)):
            found = _answer_to_real(drawn, original, (ids, seen, types), real)
            if _share(found, expected[:length] if expected.ndim == 2 else expected) <= AGREES:
                return pad
    raise Unrecognized(
        f"it tells token ids from others: {named}; one id can be a pad, which is refused inside"
        " texts, if the answer to what comes before it is the same with and without it. Leave the"
        " others out"
    )


def _answer_to_real(
    model: Transformer, original: Original, inputs: tuple[Tensor, Tensor, Any], real: Tensor
) -> Array:
    """The answer to the real tokens, where others may be seen."""
    output, of_every_token = original.compared
    with torch.no_grad():
        found, *_ = model(*inputs)
        if output in model.heads:
            found = model.head(output, found, real)
        elif not of_every_token:
            found = pick_vectors(original.pooling, found, real)
    rows: Array = found[0].numpy()
    if rows.ndim == 1:
        return rows
    rows = rows[: int(real.sum())]
    return rows if of_every_token else rows[-1]


def _share(found: Array, expected: Array) -> float:
    """The largest difference, as a share of the largest number."""
    return float(abs(found - expected).max() / abs(expected).max())


def refuse_unlike(drawn: Transformer, ask: Asking, pooling: Pick, pad: int | None) -> None:
    """Unrecognized unless the whole, with weights drawn anew, answers as the module: on some
    lengths, and on all whose forward is another than that of the longest."""
    config, pads = drawn.config, set() if pad is None else {pad}
    longest = config.max_positions
    original = Original(ask, config, pooling, pad)
    usual = drawn_ids(longest, config.vocab_size, pads)
    unlike = dict(
        lengths.unlike_lengths(lambda n: list_calls(ask, *as_inputs(usual[:n], ask)), longest)
    )
    known = sorted({min(length, longest) for length in (*COMPARED, longest)})
    near = 0.0
    for seed, length in enumerate([*known, *(x for x in unlike if x not in known)]):
        row = drawn_ids(length, config.vocab_size, pads, seed)
        _, types = as_inputs(row, ask)
        inputs = row, None if types is None else types[0].tolist()
        expected, found = original.rows(*inputs), original.rows_of_model(drawn, *inputs)
        difference, is_usual = _share(found, expected), length in known and length not in unlike
        near = max(near, difference) if is_usual else near
        if not difference <= (AGREES if is_usual else max(NEAR, 10 * near)):
            other = max(unlike, default=1) if length == longest else length
            parting = ""
            if other > 1 and other in unlike:
                call = list_calls(ask, *as_inputs(usual[:other], ask), with_lines=True)[
                    unlike[other]
                ]
                at = f" at {call.line}" if call.line else ""
                parting = f"; {other} and {longest} tokens part at {call.op}{at}"
            raise Unrecognized(
                f"of {length} tokens, {original.compared.output} differ by {difference:.2g} of the"
                f" largest number{parting}"
            )
