"""A model that was read beside transformers' own, in grids of sequences of many lengths."""

from collections.abc import Iterator

import torch
from torch import Tensor
from transformers import PreTrainedModel

from addnorm.model.layout import LAYOUTS
from addnorm.model.transformer import Transformer
from tests.support.families import VOCAB_SIZE, answers, rows_of

LENGTHS = (1, 2, 17, 63, 64, 65, 130, 200)


def grids() -> Iterator[tuple[Tensor, Tensor]]:
    """Ids and masks `[B, S]`: sequences of all lengths, padded right, left and with holes."""
    draws, seq = torch.Generator().manual_seed(0), max(LENGTHS) + 3
    for side in ("right", "left", "holes"):
        mask = torch.zeros(len(LENGTHS), seq, dtype=torch.int64)
        for row, length in zip(mask, LENGTHS, strict=True):
            holes = torch.randperm(seq, generator=draws)[:length]
            chosen = {"right": slice(0, length), "left": slice(seq - length, seq), "holes": holes}
            row[chosen[side]] = 1
        yield torch.randint(5, VOCAB_SIZE, (len(LENGTHS), seq), generator=draws), mask


def gaps_of(ours: Transformer, theirs: PreTrainedModel) -> tuple[float, float]:
    """The largest differences from transformers', one sequence at a time: of a row, as a share of
    the row's largest value; of logits, as a share of their largest."""
    of_rows, of_logits = [0.0], [0.0]
    for ids, mask in grids():
        for layout in LAYOUTS.values():
            ours.layout = layout
            with torch.no_grad():
                rows = ours(ids, mask)[0]
                logits = ours.head("logits", rows, mask) if ours.heads else None
            for index, real in enumerate(mask == 1):
                hidden, right = answers(theirs, ids[index, real].tolist(), [0] * int(real.sum()))
                assert hidden is not None
                difference = (rows[index, real] - hidden).abs().amax(-1)
                of_rows.append(float((difference / hidden.abs().amax(-1)).max()))
                if logits is not None and right is not None:
                    got = logits[index] if logits.dim() == 2 else logits[index, real]
                    right = rows_of(right, len(hidden), ours.config.heads["logits"].pick)
                    assert got.shape == right.shape
                    of_logits.append(float((got - right).abs().max() / right.abs().max()))
    return max(of_rows), max(of_logits)
