"""Logits at the mask tokens of a text -> candidates for each. Knows no requests.

Source: transformers' FillMaskPipeline.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from addnorm.service.asking.tasks.classification import probabilities
from addnorm.service.asking.tasks.pieces import Pieces
from addnorm.service.asking.tasks.token_bytes import TokenBytes, text
from addnorm.service.engine.batch import Floats, Ints
from addnorm.service.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Candidate:
    score: np.float32
    token: int
    token_str: str
    sequence: str  # the text with this token for the mask


def mask_positions(ids: Ints, pieces: Pieces, field: str) -> list[int]:
    """Positions of the mask tokens of a text. InvalidInput if there is none.

    field: the caller's name for the text.
    """
    if pieces.mask is None:
        raise InvalidInput("the model's tokenizer has no mask token", param="model")
    mask_id, mask_token = pieces.mask
    positions: list[int] = np.flatnonzero(ids == mask_id).tolist()
    if not positions:
        raise InvalidInput(
            f"{field} has no mask token: put {mask_token} at the place to fill in, within the"
            " part of the text that is not truncated",
            param=field.partition("[")[0],
        )
    return positions


def target_ids(targets: Sequence[str], pieces: Pieces) -> list[int]:
    """Each once. InvalidInput unless a target is a token, or a text of one known token."""
    unique_ids = dict[int, None]()
    for target in targets:
        ids = pieces.ids(target)
        if (token := pieces.token_to_id(target)) is not None:
            unique_ids[token] = None
        elif len(ids) == 1 and ids[0] != pieces.unknown_id:
            unique_ids[ids[0]] = None
        else:
            tokens = [pieces.id_to_token(token) for token in ids[:8]]
            raise InvalidInput(
                f"targets has {target[:60]!r}, which is not 1 token of the model's vocabulary but"
                f" {len(ids)}: {tokens}",
                param="targets",
            )
    return list(unique_ids)


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


class MaskedText:
    """A text whose masks are filled in, one after another. Where several are, the others stay in
    `sequence`, and with them all special tokens."""

    def __init__(self, ids: Ints, positions: Sequence[int], pieces: Pieces) -> None:
        """ids: of the text, with its special tokens; positions: of all its masks."""
        self._pieces, self._is_plain = pieces, len(positions) == 1
        self._ids: list[int] = ids.tolist()
        self._has_text = list(map(self._is_shown, self._ids))
        self._inner = list[bytes]()
        if pieces.bytes_of is not None:
            pairs = zip(pieces.bytes_of.inner(self._ids), self._has_text, strict=True)
            self._inner = [inner if is_shown else b"" for inner, is_shown in pairs]

    def _is_shown(self, token: int) -> bool:
        if self._pieces.id_to_token(token) is None:
            return False
        return not (self._is_plain and token in self._pieces.special_ids)

    def fill(self, position: int, tokens: Ints, scores: Floats) -> list[Candidate]:
        """The candidates of the mask at this position: tokens and scores as `likeliest` makes
        them."""
        ids: list[int] = tokens.tolist()
        words = self._pieces.texts([[token] for token in ids], False)
        bytes_of = self._pieces.bytes_of
        if bytes_of is None:
            before, after = self._ids[:position], self._ids[position + 1 :]
            rows = [[*before, token, *after] for token in ids]
            sequences = self._pieces.texts(rows, self._is_plain)
        else:
            head = self._beginning(0, position, bytes_of)
            tail = b"".join(self._inner[position + 1 :])
            sequences = list[str]()
            for token, inner in zip(ids, bytes_of.inner(ids), strict=True):
                if any(self._has_text[:position]):
                    sequence_bytes = head + (inner if self._is_shown(token) else b"") + tail
                elif self._is_shown(token):
                    sequence_bytes = bytes_of.first(token) + tail
                else:
                    sequence_bytes = self._beginning(position + 1, len(self._ids), bytes_of)
                sequences.append(text(sequence_bytes))
        return list(map(Candidate, scores, ids, words, sequences))

    def _beginning(self, start: int, end: int, bytes_of: TokenBytes) -> bytes:
        """Bytes of the text's tokens from start to end, the first of which begins it."""
        while start < end and not self._has_text[start]:
            start += 1
        if start == end:
            return b""
        return bytes_of.first(self._ids[start]) + b"".join(self._inner[start + 1 : end])
