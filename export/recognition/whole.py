"""A whole module beside the `Transformer` that it is recognized as, both with random weights."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from addnorm.export.recognition import lengths
from addnorm.export.recognition.ids import IdUses
from addnorm.export.recognition.lengths import Call, Run
from addnorm.export.reference.asking import AGREES, Asking, share_of_largest
from addnorm.export.reference.original import Original
from addnorm.export.reference.trace import Unrecognized
from addnorm.model.config import Config, Pick
from addnorm.model.transformer import Transformer
from addnorm.service.engine import selfcheck
from addnorm.service.engine.manifest import Limits

COMPARED = (1, 2, 19, 512)  # lengths of the sequences, if there, and the longest
NEAR = 1e-5  # where the forward of a length is another than that of the longest


@dataclass(frozen=True)
class Recognized:
    """model: with the module's weights. ask: calls the module. lines: what was found, and how.

    pad: an id that the module takes for a pad wherever it stands. pooling: how it makes a row of a
    sequence."""

    model: Transformer
    ask: "Asking"
    lines: list[str]
    pad: int | None
    pooling: Pick


def list_calls(ask: Asking, ids: Tensor, types: Tensor | None = None) -> list[Call]:
    """The operators that the module calls, without numbers. OriginalError if it fails."""
    run = Run(ask.module)
    with run:
        ask(ids, types)
    return run.calls


@contextmanager
def drawn_anew(module: nn.Module) -> Iterator[None]:
    """All weights drawn, until the block ends: with those that training begins with, attention is
    nearly uniform, gammas are 1 and biases 0, and most mistakes do not show."""
    generator = torch.Generator().manual_seed(0)
    before = [(x, x.data) for x in module.parameters()]
    try:
        for parameter, _ in before:
            # a matrix's numbers keep the size of rows, a vector's are around 0.7
            weights = torch.randn(parameter.shape, generator=generator)
            if weights.dim() < 2:
                weights.mul_(0.3).add_(0.7)
            else:
                weights.mul_(1.2 * weights.shape[-1] ** -0.5)
            parameter.data = weights.to(parameter.device, parameter.dtype)
        yield
    finally:
        for tensor, values in before:
            tensor.data = values


def as_inputs(ids: Sequence[int], ask: Asking) -> tuple[Tensor, Tensor | None]:
    types = torch.arange(len(ids)) * 2 // len(ids) if ask.has_types else None
    return torch.tensor([ids]), None if types is None else types[None]


def fill_ids(length: int, vocab_size: int, pads: set[int]) -> list[int]:
    """Different ones, where there are so many, the highest first."""
    candidates = [index for index in reversed(range(vocab_size)) if index not in pads][:length]
    return [candidates[place % len(candidates)] for place in range(length)]


def _sequence(
    config: Config, length: int, pad: int | None, seed: int = 0
) -> tuple[list[int], list[int] | None]:
    """Drawn ids and types."""
    limits = Limits(
        max_positions=config.max_positions, vocab_size=config.vocab_size,
        type_vocab_size=config.type_vocab_size, pad_id=pad,
    )  # fmt: skip
    batch = selfcheck.sequences(limits, [length], seed)
    return batch.tokens.tolist(), None if batch.types is None else batch.types.tolist()


def pad_of(drawn_model: Transformer, ask: Asking, pooling: Pick, id_uses: IdUses) -> int | None:
    """The id that the module tells from others. Unrecognized unless it is a pad: behind other
    tokens it changes no answer."""
    if not id_uses.ids:
        return None
    listed = ", ".join(f"{index} ({step.op}{step.where})" for index, step in id_uses.ids.items())
    pad, *other_ids = id_uses.ids
    config = drawn_model.config
    length = min(5, config.max_positions - 2)
    if not other_ids and length > 0:
        original = Original(ask, config, pooling, pad)
        ids, types = _sequence(config, length, pad)
        inputs = [*ids, pad, pad], types and [*types, 0, 0]
        expected, rows = original.rows(*inputs), original.rows_of_model(drawn_model, *inputs, 2)
        if share_of_largest(rows, expected[:length] if expected.ndim == 2 else expected) <= AGREES:
            return pad
    raise Unrecognized(
        f"it treats some token ids differently: {listed}; one id can count as padding, which is"
        " refused inside texts, if removing it does not change the answer for the tokens before"
        " it"
    )


def refuse_unlike(drawn_model: Transformer, ask: Asking, pooling: Pick, pad: int | None) -> None:
    """Unrecognized unless the whole, with weights drawn anew, answers as the module: on some
    lengths, and on all whose forward is another than that of the longest."""
    config, longest = drawn_model.config, drawn_model.config.max_positions
    original = Original(ask, config, pooling, pad)
    plain_ids, _ = _sequence(config, longest, pad)
    unlike = {
        *lengths.unlike_lengths(lambda n: list_calls(ask, *as_inputs(plain_ids[:n], ask)), longest)
    }
    usual_lengths = sorted({min(length, longest) for length in (*COMPARED, longest)})
    near = 0.0
    for seed, length in enumerate([*usual_lengths, *(x for x in unlike if x not in usual_lengths)]):
        inputs = _sequence(config, length, pad, seed)
        expected, rows = original.rows(*inputs), original.rows_of_model(drawn_model, *inputs)
        difference, is_usual = (
            share_of_largest(rows, expected),
            length in usual_lengths and length not in unlike,
        )
        near = max(near, difference) if is_usual else near
        if not difference <= (AGREES if is_usual else max(NEAR, 10 * near)):
            raise Unrecognized(
                f"of {length} tokens, {original.compared.output} differ by {difference:.2g} of the"
                " largest number"
            )
