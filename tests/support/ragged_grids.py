"""A model that was read beside transformers' own, in grids of sequences of many lengths."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from addnorm.model.layout import LAYOUTS
from addnorm.model.transformer import Transformer
from tests.support.families import VOCAB_SIZE, answers, rows_of

LENGTHS = (1, 2, 17, 63, 64, 65, 130, 200)


def grids(sequences: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Ids and masks `[B, S]`: the sequences padded right, left and with holes."""
    draws, seq = torch.Generator().manual_seed(0), max(map(len, sequences)) + 3
    for side in ("right", "left", "holes"):
        ids = torch.randint(5, VOCAB_SIZE, (len(sequences), seq), generator=draws)
        mask = torch.zeros_like(ids)
        for row, is_real, sequence in zip(ids, mask, sequences, strict=True):
            length = len(sequence)
            holes = torch.randperm(seq, generator=draws)[:length].sort().values
            chosen = {"right": slice(0, length), "left": slice(seq - length, seq), "holes": holes}
            row[chosen[side]], is_real[chosen[side]] = sequence, 1
        yield ids, mask


def gaps_of(ours: Transformer, theirs: PreTrainedModel) -> tuple[float, float]:
    """The largest differences from transformers', one sequence at a time: of a row, as a share of
    the row's largest value; of logits, as a share of their largest."""
    draws = torch.Generator().manual_seed(1)
    sequences = [torch.randint(5, VOCAB_SIZE, (length,), generator=draws) for length in LENGTHS]
    their_answers = [
        answers(theirs, sequence.tolist(), [0] * len(sequence)) for sequence in sequences
    ]
    of_rows, of_logits = [0.0], [0.0]
    for ids, mask in grids(sequences):
        for layout in LAYOUTS.values():
            ours.layout = layout
            with torch.no_grad():
                rows = ours(ids, mask)[0]
                logits = ours.head("logits", rows, mask) if ours.heads else None
            for index, (hidden, their_logits) in enumerate(their_answers):
                assert hidden is not None
                real = mask[index] == 1
                difference = (rows[index, real] - hidden).abs().amax(-1)
                of_rows.append(float((difference / hidden.abs().amax(-1)).max()))
                if logits is not None and their_logits is not None:
                    got = logits[index] if logits.dim() == 2 else logits[index, real]
                    pick = ours.config.heads["logits"].pick
                    target = rows_of(their_logits, len(hidden), pick)
                    assert got.shape == target.shape
                    of_logits.append(float((got - target).abs().max() / target.abs().max()))
    return max(of_rows), max(of_logits)
