"""Texts -> token ids, by a bundle's own tokenizer.json. Knows models' limits, no requests."""

import json
import os
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import tokenizers
from tokenizers import Encoding

from addnorm.service.engine.batch import Ints
from addnorm.service.engine.bundle import TOKENIZER, Bundle
from addnorm.service.engine.manifest import InputRules, InputType
from addnorm.service.engine.windows import WholeText
from addnorm.service.errors import StartupError

Template = tuple[str, str, str]  # before the first text, between the two, behind the second
# else each call starts threads of its own, which compete with the worker threads
os.environ["TOKENIZERS_PARALLELISM"] = "false"
FEWEST_CHARACTERS = 256  # that any text may have: of few tokens, all may be long
# Characters of a text for each token that it may have. Languages have 2 to 5.
CHARACTERS_PER_TOKEN = 16  # more are refused before any work, unless the text may be cut
LIKELY_CHARACTERS = 8  # mostly enough to cut the text
# Of a text that is cut so many are read for its first tokens, where it has few: runs of blanks,
# words of thousands of letters. They take 0.1 to 1 s, in one step.
MAX_CUT_CHARACTERS = 2**17
# So many of a text that is read to its end, though it is cut: at its left, or beside another. The
# most costly ones (ligatures that stand for 18 letters) take 0.6 s.
MAX_WHOLE_CHARACTERS = 2**15
GROWTH = 4  # of the beginning that is read, where it did not hold the tokens needed
EDGE_CHARACTERS = 64  # at the end of a beginning: what follows may still change their tokens
# Normalizers and pre-tokenizers that read a text from the left, and at most to the end of a word:
# what follows changes no word before. Others may look any distance ahead, as one that groups the
# digits of a number from its end.
FROM_THE_LEFT = (  # ends of their names
    "Normalizer", "ByteLevel", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Precompiled",
    "Prepend", "Strip", "StripAccents",
    "PreTokenizer", "CharDelimiterSplit", "Digits", "FixedLength", "Metaspace", "Punctuation",
    "UnicodeScripts", "Whitespace", "WhitespaceSplit",
)  # fmt: skip
# So does an expression of these alternatives: some characters, then a run of others to its end; or
# blanks, of which `settled` takes no part of a run.
_ONE = (
    r"(?:\\[pP]\{\^?\w+\}|\\[^\WpPbBAzZGXRKk0-9]|\\[^\w]|\[(?:\\.|[^\]\[\\])+\]"
    r"|[^\\\[\](){}.*+?^$|])"
)
_GROUP = r"\(\?i?:(?:[^()\\\[\].*+?{}^$]|\[\w+\])*\)"  # such as (?i:'s|'t|'re)
_FEW = rf"(?:{_ONE}(?:\?|\{{[0-9](?:,[0-9])?\}})?(?![+*{{])|{_GROUP})"
_RUN = rf"{_ONE}(?:[+*]|\{{[0-9],\}})"
_BLANKS = r"\\s[+*](?:\(\?!\\S\)|\[\\r\\n\]\+?|\\n\+?)"
LOCAL = re.compile(rf"{_FEW}*(?:{_RUN})?(?:{_ONE}[*?])*|{_BLANKS}")
LONGEST_FIRST = "longest_first"
PROBE = "a"
# Characters that the replacements of a tokenizer may make of one, each after the other. Ten of
# "a" by ten "a" would make 10 GB of a single one.
MOST_GROWTH = 1000

Pair = tuple[str, str]
Text = str | Pair
# one of the library's methods
Encode = Callable[[tokenizers.Tokenizer, list[Text]], list[Encoding]]


def pair_text(
    template: Template,
    pair: tuple[str, str],
    tokenizer: tokenizers.Tokenizer,
    max_tokens: int | None,
) -> str | None:
    """A pair in the template. max_tokens: the second text is truncated until the result has no
    more; the rest must stay, because the answer is read at its end. None for any number. Returns
    None if the first text leaves no room.
    """
    (first, second), (before, between, behind) = pair, template
    while True:
        text = f"{before}{first}{between}{second}{behind}"
        num_excess = 0 if max_tokens is None else len(tokenizer.encode(text)) - max_tokens
        if num_excess <= 0:
            return text
        offsets = tokenizer.encode(second, add_special_tokens=False).offsets
        if num_excess > len(offsets):
            return None
        second = second[: offsets[-num_excess][0]]


def num_characters(text: Text) -> int:
    """Characters of a text, or of both texts of a pair."""
    return len(text) if isinstance(text, str) else len(text[0]) + len(text[1])


class CannotCut(Exception):
    """A text cannot be cut as the library cuts it: `reason` follows its place."""

    def __init__(self, index: int, reason: str, part: int | None = None) -> None:
        """index: of the text among those given. part: which text of the pair; None: all of it."""
        super().__init__(index, reason)
        self.index, self.reason, self.part = index, reason, part


class Tokenizer:
    """Safe to call from several threads at once: its tokenizers never change once made."""

    def __init__(self, bundle: Bundle, rules: InputRules | None = None) -> None:
        """rules: of the texts' input type. StartupError if the file is broken, or has ids that the
        model lacks."""
        rules = rules or InputRules()
        max_text_tokens, self._fill_id = rules.max_tokens, rules.fill_id
        self._min_tokens, with_special = rules.min_tokens or 0, not rules.inference_free
        limits = bundle.manifest.limits
        self.max_text_tokens = max_text_tokens or limits.max_text_tokens
        self.max_characters = max(CHARACTERS_PER_TOKEN * limits.max_positions, FEWEST_CHARACTERS)
        self.max_cut_characters = max(MAX_CUT_CHARACTERS, self.max_characters)
        self.max_whole_characters = max(MAX_WHOLE_CHARACTERS, self.max_characters)
        self.has_types = limits.type_vocab_size > 1 and bundle.manifest.texts_have_types
        self._template, self._left_out_ids = (
            bundle.manifest.pair_template, bundle.manifest.left_out_ids or ()
        )  # fmt: skip
        self._tokenizer, self._cut, self._cut_pairs = (_load_file(bundle) for _ in range(3))
        self._pair_strategy = (self._tokenizer.truncation or {}).get("strategy", LONGEST_FIRST)
        for tokenizer in (self._tokenizer, self._cut, self._cut_pairs):
            tokenizer.no_truncation()
            if not with_special:
                tokenizer.post_processor = None
        self.num_special = self._tokenizer.num_special_tokens_to_add(is_pair=False)
        self.num_special_of_pair = self._tokenizer.num_special_tokens_to_add(is_pair=True)
        self.ends = ends_of(self._tokenizer)  # of the ids of each text; empty if it marks none
        highest, special = self.num_ids - 1, self.num_special
        if highest >= limits.vocab_size:
            raise StartupError(
                f"bundle {bundle.path}: {TOKENIZER} has ids up to {highest}, the model's are below"
                f" {limits.vocab_size}: export it again with the tokenizer it was trained with"
            )
        if not special < self.max_text_tokens <= limits.max_positions:
            raise StartupError(
                f"bundle {bundle.path}: texts may have {self.max_text_tokens} tokens; with"
                f" {special} special tokens and {limits.max_positions} positions it must be"
                f" {special + 1} to {limits.max_positions}: export it again"
            )
        # they keep the special tokens around the texts
        self._cut.enable_truncation(self.max_text_tokens)
        self._cut_pairs.enable_truncation(self.max_text_tokens, strategy=self._pair_strategy)
        self._reads_from_left = all(
            reads_from_left(json.loads(part.__getstate__()))
            for part in (self._tokenizer.normalizer, self._tokenizer.pre_tokenizer)
            if part is not None
        )
        token_texts = (
            token.content for token in self._tokenizer.get_added_tokens_decoder().values()
        )
        self._edge = EDGE_CHARACTERS + max(map(len, token_texts), default=0)

    @property
    def library(self) -> tokenizers.Tokenizer:
        """The library's, which neither pads nor cuts. It must not be changed."""
        return self._tokenizer

    def tokens(
        self,
        texts: Sequence[Text],
        truncate: bool,
        left: bool = False,
        cut: list[int] | None = None,
        encodings: list[Encoding] | None = None,
    ) -> list[Ints]:
        """The ids and types of the tokens of each text or pair `[num_tokens, 2]`, special tokens
        included, without those that the model leaves out. encodings: a list that receives the
        texts' encodings with words and offsets, which take longer and are larger."""
        new_encodings = self.encode(texts, truncate, left, is_fast=encodings is None, cut=cut)
        if encodings is not None:
            encodings += new_encodings
        rows = [
            np.array((encoding.ids, encoding.type_ids), np.int64).T for encoding in new_encodings
        ]
        for token_id in self._left_out_ids:
            rows = [row[row[:, 0] != token_id] for row in rows]
        return rows if self._fill_id is None else list(map(self._fill, rows))

    def _fill(self, row: Ints) -> Ints:
        """ids and types of a text, `[num_tokens, 2]`, filled up as its authors do it."""
        num_missing = max(0, self._min_tokens - len(row))
        return np.concatenate([row, np.tile([[self._fill_id, 0]], (num_missing, 1))])

    @cached_property
    def num_ids(self) -> int:
        """The highest id of a token, plus one."""
        return max(self._tokenizer.get_vocab().values(), default=-1) + 1

    def encode(
        self,
        texts: Sequence[Text],
        truncate: bool,
        left: bool = False,
        is_fast: bool = False,
        cut: list[int] | None = None,
    ) -> list[Encoding]:
        """The tokens of each text or pair, with words and offsets unless it is to be fast.

        truncate: cuts them to `max_text_tokens`, or raises CannotCut. left: cuts off their
        beginnings. cut: is given the number of characters of each text that was cut.
        """
        full_texts = texts
        # of the library's methods the fast one holds Python's global lock for the shortest time
        library = tokenizers.Tokenizer
        encode: Encode = library.encode_batch_fast if is_fast else library.encode_batch
        if self._template:
            texts = [self._fill_template(*entry, truncate) for entry in enumerate(texts)]
        if not truncate:
            return encode(self._tokenizer, list(texts))
        cutters = self._left if left else (self._cut, self._cut_pairs)
        excerpts = [self._readable(index, text, left) for index, text in enumerate(texts)]
        encodings: list[Encoding] = []
        for is_text, group in groupby(excerpts, lambda text: isinstance(text, str)):
            if is_text:
                encodings += encode(cutters[0], list(group))
            else:
                encodings += self._encode_pairs(encode, cutters[1], list(group), len(encodings))
        if cut is not None:
            num_template_characters = sum(map(len, self._template or ()))
            for text, excerpt, encoding in zip(full_texts, excerpts, encodings, strict=True):
                was_cut = len(encoding) == self.max_text_tokens and bool(encoding.overflowing)
                # or what was not read of it is more than blanks; a pair is read in its template
                if isinstance(text, str):
                    was_cut = was_cut or bool(text[len(excerpt) :].strip())
                elif isinstance(excerpt, str):
                    was_cut = (
                        was_cut or len(excerpt) < num_characters(text) + num_template_characters
                    )
                if was_cut:
                    cut.append(num_characters(text))
        return encodings

    def whole_texts(
        self, texts: Sequence[Text], part: int | None, num_prompt: int, num_pair_prompt: int
    ) -> list[WholeText]:
        """All tokens of each text or pair, however many. part: the text of a pair that may be
        split; None: the one with more tokens. num_prompt, num_pair_prompt: characters of the prompt
        at the beginning of single texts, and of the first text of pairs, which is in every
        window."""
        strings = [self._joined(text) for text in texts]
        rows, encodings = list[WholeText](), self._tokenizer.encode_batch(strings)
        for text, string, encoding in zip(texts, strings, encodings, strict=True):
            cells = np.array((encoding.ids, encoding.type_ids), np.int64).reshape(2, -1).T
            parts = np.array([-1 if at is None else at for at in encoding.sequence_ids], np.int64)
            offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2)
            is_special = np.array(encoding.special_tokens_mask, bool)
            if self._left_out_ids:
                kept = ~np.isin(cells[:, 0], self._left_out_ids)
                cells, parts, offsets = cells[kept], parts[kept], offsets[kept]
                is_special = is_special[kept]
            if not isinstance(text, str) and isinstance(string, str):  # in the template
                split_part, last = 0, len(string) - len((self._template or "")[-1])
                first = last - len(text[1])
            else:
                split_text, split_part, first = text, 0, num_prompt
                if not isinstance(text, str):
                    is_second = np.count_nonzero(parts == 1) >= np.count_nonzero(parts == 0)
                    split_part = int(is_second) if part is None else part
                    split_text, first = text[split_part], (num_pair_prompt, 0)[split_part]
                last = len(split_text)
            of_text = (parts == split_part) & (offsets[:, 1] > first) & (offsets[:, 0] < last)
            places = np.flatnonzero(of_text).tolist()
            begin, end = (places[0], places[-1] + 1) if places else (len(cells), len(cells))
            rows.append(WholeText(cells, offsets, is_special, begin, end, first, last - first))
        return rows

    def _joined(self, text: Text) -> Text:
        """A pair in the template, if there is one."""
        if isinstance(text, str) or not self._template:
            return text
        before, between, behind = self._template
        return f"{before}{text[0]}{between}{text[1]}{behind}"

    def _fill_template(self, index: int, text: Text, truncate: bool) -> str:
        """A pair in the template. truncate: cuts its second text."""
        if isinstance(text, str):
            return text
        assert self._template
        first, second = text
        if truncate and len(second) > self.max_characters:
            second = self._beginning(index, second, self.max_text_tokens, 1)
        is_readable = not truncate or len(first) <= self.max_whole_characters
        limit = self.max_text_tokens if truncate else None
        template_text = (
            pair_text(self._template, (first, second), self._tokenizer, limit)
            if is_readable
            else None
        )
        if template_text is None:
            raise CannotCut(
                index,
                "is truncated in its second text only, and the first text leaves no room for it",
            )
        return template_text

    @cached_property
    def _left(self) -> tuple[tokenizers.Tokenizer, tokenizers.Tokenizer]:
        """Tokenizers that cut texts, and pairs, on the left. Few callers need them."""
        plain = self._tokenizer.to_str()
        texts, pairs = (tokenizers.Tokenizer.from_str(plain) for _ in range(2))
        for tokenizer in (texts, pairs):
            tokenizer.encode_special_tokens = self._tokenizer.encode_special_tokens
        texts.enable_truncation(self.max_text_tokens, direction="left")
        pairs.enable_truncation(
            self.max_text_tokens, strategy=self._pair_strategy, direction="left"
        )
        return texts, pairs

    def _encode_pairs(
        self, encode: Encode, cutter: tokenizers.Tokenizer, pairs: list[Text], start: int
    ) -> list[Encoding]:
        """start: the index of the first pair among all texts. CannotCut if the file's strategy cuts
        only one text of a pair, and the other is too long."""
        try:
            return encode(cutter, pairs)
        except Exception:  # tokenizers has no class of its own
            for index, pair in enumerate(pairs, start):
                try:
                    encode(cutter, [pair])
                except Exception as error:
                    cut_text, long_text = "first", "second"
                    if self._pair_strategy == "only_second":
                        cut_text, long_text = long_text, cut_text
                    reason = (
                        f"is truncated in its {cut_text} text only, and the {long_text} text"
                        " leaves no room for it"
                    )
                    raise CannotCut(index, f"{reason} for it") from error
            raise

    def _readable(self, index: int, text: Text, left: bool) -> Text:
        """A part of a text, or of a pair, that is truncated to the same tokens as the whole. Bounds
        the work. left: all of it, as the place of the cut depends on its tokens from the first
        on."""
        if left and (num := num_characters(text)) > self.max_whole_characters:
            reason = (
                f"has {num} characters: a text of more than {self.max_whole_characters}"
                " characters cannot be truncated"
            )
            raise CannotCut(index, f"{reason} the left")
        if not isinstance(text, str) and self.num_special_of_pair > self.max_text_tokens:
            reason = f"has {self.num_special_of_pair} special tokens, the limit is"
            raise CannotCut(index, f"{reason} {self.max_text_tokens}")
        if left:
            return text
        if isinstance(text, str):
            return self._beginning(index, text, self.max_text_tokens - self.num_special)
        first, second = map(len, text)
        if max(first, second) <= self.max_characters:
            return text
        if min(first, second) > self.max_whole_characters:
            # both would have to be read to the end, to know which has more tokens
            reason = f"is a pair of texts of more than {self.max_whole_characters} characters each"
            raise CannotCut(index, reason)
        longer = int(second > first)
        shorter = self._tokenizer.encode_batch([text[1 - longer]], add_special_tokens=False)[0]
        # as many as are ever kept, and more than the other has: where both are cut depends on that
        num_needed = max(self.max_text_tokens, len(shorter) + 1)
        beginning = self._beginning(index, text[longer], num_needed, longer)
        return (text[0], beginning) if longer else (beginning, text[1])

    def _beginning(self, index: int, text: str, num_needed: int, part: int | None = None) -> str:
        """A beginning of the text with so many tokens that nothing behind it changes; all of it
        where anything could.

        part: which text of a pair it is.
        """
        if not self._reads_from_left:
            if len(text) <= self.max_cut_characters:
                return text
            raise CannotCut(
                index,
                f"has {len(text)} characters: how this model's tokenizer splits a text depends on"
                f" its end, so only texts of up to {self.max_cut_characters} characters are"
                " truncated",
                part,
            )
        size = min(LIKELY_CHARACTERS * self.max_text_tokens, self.max_cut_characters)
        while len(text) > size:
            if self._num_settled(text[:size]) >= num_needed:
                return text[:size]
            if size == self.max_cut_characters:
                break
            size = min(GROWTH * size, self.max_cut_characters)
        else:
            return text
        raise CannotCut(
            index,
            f"has {len(text)} characters, and its first {self.max_cut_characters} have too few"
            f" tokens to truncate it to {self.max_text_tokens}",
            part,
        )

    def _num_settled(self, beginning: str) -> int:
        """Number of leading tokens that are the same whatever text follows.

        They belong to the words that end well before the edge: the last word may go on behind
        the edge, and an added token may begin shortly before it. Where a run of blanks leads over
        the edge, how it is split depends on its end.
        """
        encoding = self._tokenizer.encode_batch([beginning], add_special_tokens=False)[0]
        words, edge = encoding.word_ids, max(len(beginning) - self._edge, 0)
        if beginning[edge : edge + 1].isspace():
            edge = len(beginning[:edge].rstrip())
        unsettled = (index for index, (_, end) in enumerate(encoding.offsets) if end > edge)
        first = next(unsettled, len(words) - 1)  # neither it nor the rest of its word is settled
        return words.index(words[first]) if words else 0


def load(bundle: Bundle) -> Tokenizer | None:
    """None where the bundle has no tokenizer."""
    return Tokenizer(bundle) if TOKENIZER in bundle.manifest.files else None


def load_by_type(bundle: Bundle) -> dict[InputType, Tokenizer]:
    """A tokenizer for each input type whose texts are read by rules of their own."""
    return {
        input_type: Tokenizer(bundle, rules)
        for input_type, rules in bundle.manifest.input_types.items()
        if rules.has_tokenizer and TOKENIZER in bundle.manifest.files
    }


def _load_file(bundle: Bundle) -> tokenizers.Tokenizer:
    """The file's tokenizer, without the padding that the file sets."""
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(bundle.path / TOKENIZER))
    except Exception as error:  # tokenizers has no class of its own
        raise StartupError(
            f"bundle {bundle.path}: {TOKENIZER} is broken: {error}; export it again"
        ) from error
    if problem := growth_problem(tokenizer):
        raise StartupError(f"bundle {bundle.path}: {TOKENIZER}: {problem}")
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = bundle.manifest.split_special_tokens
    return tokenizer


def growth_problem(tokenizer: tokenizers.Tokenizer) -> str | None:
    """The problem if its replacements make texts, or the texts that ids are decoded to, very much
    longer; None if they do not."""
    for part in (tokenizer.normalizer, tokenizer.decoder):
        growth = 1.0 if part is None else _growth(json.loads(part.__getstate__()))
        if growth > MOST_GROWTH:
            return (
                f"its replacements may turn one character into {growth:.3g}, the limit is"
                f" {MOST_GROWTH}"
            )
    return None


def _growth(part: dict[str, Any]) -> float:
    """The most characters that a normalizer, or a decoder, may make of one."""
    if part["type"] == "Sequence":
        product = 1.0
        for inner in part.get("normalizers") or part.get("decoders") or ():
            product *= _growth(inner)
        return product
    if part["type"] != "Replace":
        return 1.0
    # a regular expression may match one character, or the place between two
    pattern = part["pattern"].get("String", "")
    content = len(part["content"])
    return max(1.0, content / len(pattern)) if pattern else 1.0 + content


def reads_from_left(part: dict[str, Any]) -> bool:
    """No word of the normalizer or pre-tokenizer depends on text after the next word."""
    if part["type"] == "Sequence":
        inner = part.get("normalizers") or part.get("pretokenizers") or ()
        return all(map(reads_from_left, inner))
    if part["type"] in ("Replace", "Split"):
        expression = part["pattern"].get("Regex")
        return expression is None or all(map(LOCAL.fullmatch, _alternatives(expression)))
    return bool(part["type"].endswith(FROM_THE_LEFT))


def _alternatives(expression: str) -> list[str]:
    """The alternatives of a regular expression, outside of groups and classes."""
    alternatives, depth = [""], 0
    for piece in re.findall(r"\\.|\[(?:\\.|[^\]\\])*\]|.", expression, re.DOTALL):
        depth += (piece == "(") - (piece == ")")
        if piece == "|" and not depth:
            alternatives.append("")
        else:
            alternatives[-1] += piece
    return alternatives


class Ends(NamedTuple):
    """Ids of the special tokens before and after a text, or a pair of texts."""

    first: tuple[int, ...]
    last: tuple[int, ...]


def ends_of(tokenizer: tokenizers.Tokenizer) -> tuple[Ends, ...]:
    """First and last special tokens of a text, and those of a pair if they differ.

    Texts without a special token at one end are left out: one low id tells too little, as in
    OpenAI's vocabulary every text that begins with "#" begins with id 2.
    """
    distinct_ends = dict[Ends, None]()
    for encoding in (tokenizer.encode(PROBE), tokenizer.encode(PROBE, PROBE)):
        places = [at for at, text in enumerate(encoding.sequence_ids) if text is not None]
        if places:  # else the tokenizer makes no token of the probe
            ids = tuple(encoding.ids)
            distinct_ends[Ends(ids[: places[0]], ids[places[-1] + 1 :])] = None
    return tuple(ends for ends in distinct_ends if ends.first and ends.last)


def has_ends(ids: Sequence[int], ends: tuple[Ends, ...]) -> bool:
    """The ids begin and end with the special tokens of one of `ends`."""
    return any(
        len(ids) >= len(first) + len(last)
        and tuple(ids[: len(first)]) == first
        and tuple(ids[-len(last) :]) == last
        for first, last in ends
    )
