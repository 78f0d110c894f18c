"""Cases of the certificate against the forward of whoever wrote the model.

What is served must equal what their own module answers.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import compress

import numpy as np

from addnorm.export.certificate import tolerances
from addnorm.export.certificate.served import (
    Case,
    CertificationError,
    NamedCompare,
    Served,
    by_head,
    by_torch,
    cases,
    picked_rows,
    real_rows,
)
from addnorm.export.reference.original import Original, OriginalError
from addnorm.model.transformer import Transformer
from addnorm.service.engine import selfcheck
from addnorm.service.engine.batch import Grid
from addnorm.service.engine.manifest import Limits

LENGTHS = (3, 1, 512, 29, 7)  # of sequences, cut to the model's


def refuse_unlike(reference: Transformer, original: Original, limits: Limits) -> None:
    """CertificationError if PyTorch's `Transformer` says something else already. Comes before the
    export, which takes longer."""
    drawn = selfcheck.sequences(original.sequence_limits(limits), LENGTHS)
    for index in range(len(drawn)):
        ids, types = next(_sequences(drawn.sequence(index).grid()))
        if not original.can_say(ids):
            continue
        try:
            expected = original.rows(ids, types)
        except OriginalError as error:
            raise CertificationError(str(error)) from error
        got = original.rows_of_model(reference, ids, types)
        for output, difference, limit in tolerances.vectors(
            original.compared.output, np.atleast_2d(got), np.atleast_2d(expected), "fp32"
        ):
            if not difference <= limit:
                raise CertificationError(
                    f"the model differs from the reference: for {len(ids)} tokens, {output}"
                    f" differ by {difference:.2g}, the limit is {limit:.1g}. Compare its Config"
                    " with the reference's: activation, n_heads, block, causal, eps, positions"
                )


def ask_all(original: Original, limits: Limits, samples: Sequence[Sequence[int]] = ()) -> None:
    """Asks it for all that `named_cases` compares."""
    for case in _answerable_cases(original, limits, samples):
        for ids, types in _sequences(case.grid()):
            original.rows(ids, types)


def named_cases(
    path: Served, reference: Transformer, original: Original, samples: Sequence[Sequence[int]] = ()
) -> list[NamedCompare]:
    """The same cases as beside PyTorch's `Transformer`, and samples."""
    limits = path.model.bundle.manifest.limits
    return [
        (f"reference, {case.name}", partial(_compare_answers, path, case, reference, original))
        for case in _answerable_cases(original, limits, samples)
    ]


def _answerable_cases(
    original: Original, limits: Limits, samples: Sequence[Sequence[int]]
) -> Iterator[Case]:
    """The cases without rows that the original has no answer to. samples: token ids beside our own,
    each a sequence."""
    possible_cases = cases(original.sequence_limits(limits))
    if samples:
        possible_cases.append(Case("samples", [[*map(int, ids)] for ids in samples]))
    for case in possible_cases:
        is_answerable = [original.can_say(ids) for ids, _ in _sequences(case.grid())]
        mask, types = case.attention_mask, case.token_type_ids
        if any(is_answerable):
            yield Case(
                case.name,
                [*compress(case.input_ids, is_answerable)],
                mask and [*compress(mask, is_answerable)],
                types and [*compress(types, is_answerable)],
            )


def _compare_answers(
    path: Served, case: Case, reference: Transformer, original: Original, precision: str
) -> Iterator[tolerances.Result]:
    """Compares the output of a case with the original's. In fp16 and int8, PyTorch computes heads:
    `served.py` compares what they make of served rows."""
    output, of_every_token = original.compared
    positions = path.few_values(output, case).get("positions")
    if positions == "last":
        of_every_token = False
    grid = case.grid()
    real = grid.attention_mask != 0
    try:
        answers = [original.rows(*row) for row in _sequences(grid)]
    except OriginalError as error:
        raise CertificationError(f"{case.name}: {error}") from error
    if of_every_token:
        expected = np.concatenate(answers)
    else:
        expected = np.stack([answer[-1] if answer.ndim == 2 else answer for answer in answers])
    if precision != "fp32" and output in reference.heads:
        precision = "fp32"
        activations, *_ = by_torch(reference, grid)
        pick = reference.config.heads[output].pick
        pick = "last" if pick == "every" else pick
        rows = activations[real] if of_every_token else picked_rows(pick, activations, real)
        got = by_head(reference, output, rows)
    else:
        chosen = {"logits": {"positions": "all" if of_every_token else "last"}}
        options = chosen if positions else {}
        answer = path.ask(case, precision, outputs=[output], **options)[output]
        if of_every_token:
            got = real_rows(answer, real, case)
        else:
            got = np.array(answer, np.float32)[real.any(1)]
            got = got.reshape(len(got), -1)
    yield from tolerances.vectors(output, got, expected, precision)


def _sequences(grid: Grid) -> Iterator[tuple[list[int], list[int] | None]]:
    """Ids and types of each row's real tokens."""
    for row, real in enumerate(grid.attention_mask != 0):
        types = None if grid.token_type_ids is None else grid.token_type_ids[row][real].tolist()
        yield grid.input_ids[row][real].tolist(), types
