"""Logits at the mask tokens of a text -> candidates for each. Knows no requests.

Source: transformers' FillMaskPipeline.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from addnorm.service.errors import InvalidInput
from addnorm.service.runtime.batch import Floats, Ints
from addnorm.service.tasks.classification import probabilities
from addnorm.service.tasks.pieces import Pieces


@dataclass(frozen=True, slots=True)
class Candidate:
    score: np.float32
    token: int
    token_str: str
    sequence: str  # the text with this token for the mask


def mask_positions(ids: Sequence[int], pieces: Pieces, field: str) -> list[int]:
    """Where the mask tokens of a text are. InvalidInput if there is none.

    field: the caller's name for the text.
    """
    if pieces.mask is None:
        raise InvalidInput("the model's tokenizer has no mask token", param="model")
    mask_id, mask_token = pieces.mask
    positions = [position for position, token in enumerate(ids) if token == mask_id]
    if not positions:
        raise InvalidInput(
            f"{field} has no mask token: put {mask_token} where a token is to be filled in; one"
            " that is cut off does not count",
            param=field.partition("[")[0],
        )
    return positions


def target_ids(targets: Sequence[str], pieces: Pieces) -> list[int]:
    """Each once. InvalidInput unless a target is a token, or a text of one known token."""
    return list(dict.fromkeys(_target_id(target, pieces) for target in targets))


def _target_id(target: str, pieces: Pieces) -> int:
    if (token := pieces.token_to_id(target)) is not None:
        return token
    ids = pieces.ids(target)
    if len(ids) == 1 and ids[0] != pieces.unknown_id:
        return ids[0]
    tokens = [pieces.id_to_token(token) for token in ids[:8]]
    raise InvalidInput(
        f"targets has {target[:60]!r}, which is not 1 token of the model's vocabulary but"
        f" {len(ids)}: {tokens}",
        param="targets",
    )


def likeliest(
    logits: Floats, top_k: int, targets: Sequence[int] | None = None
) -> tuple[Ints, Floats]:
    """Logits `[vocabulary]` of one mask -> ids and probabilities `[k]`, likeliest first.

    targets: only these are candidates. k is top_k, or their number if that is less. The
    probabilities are those among the whole vocabulary.
    """
    if targets is None:
        top_k = min(top_k, len(logits))
        ids = np.flatnonzero(logits >= np.partition(logits, -top_k)[-top_k])  # more if values tie
    else:
        ids = np.sort(np.array(targets, np.int64))
    ids = ids[np.argsort(-logits[ids], kind="stable")[:top_k]]  # equal ones by id
    return ids, probabilities(logits[None], "softmax")[0, ids]


def filled(
    ids: Sequence[int], position: int, tokens: Ints, scores: Floats, pieces: Pieces, alone: bool
) -> list[Candidate]:
    """The candidates of the mask at this position: tokens and scores as `likeliest` makes them.

    ids: of the text, with its special tokens. alone: whether it is the only mask. Else the others
    stay in `sequence`, and with them all special tokens.
    """

    def candidate(token: int, score: np.float32) -> Candidate:
        text = [*ids[:position], token, *ids[position + 1 :]]
        return Candidate(score, token, pieces.text([token], False), pieces.text(text, alone))

    return list(map(candidate, tokens.tolist(), scores))
