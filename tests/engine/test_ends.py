"""What the ids of a text begin and end with, as its tokenizer says."""

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE, WordPiece
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import (
    BertProcessing,
    ByteLevel,
    PostProcessor,
    RobertaProcessing,
    Sequence,
    TemplateProcessing,
)

from addnorm.service.engine.tokenizer import Ends, ends_of, has_ends

WORDS = ["<s>", "</s>", "a", "b", "[UNK]"]
IDS = {word: index for index, word in enumerate(WORDS)}


def template(single: str, pair: str) -> PostProcessor:
    special = [(word, IDS[word]) for word in ("<s>", "</s>")]
    return TemplateProcessing(single=single, pair=pair, special_tokens=special)


BOTH = (Ends((0,), (1,)),)
CASES: dict[str, tuple[PostProcessor | None, tuple[Ends, ...]]] = {
    "a template": (template("<s> $A </s>", "<s> $A </s> $B:1 </s>:1"), BOTH),
    "BERT's": (BertProcessing(("</s>", 1), ("<s>", 0)), BOTH),
    "RoBERTa's": (RobertaProcessing(("</s>", 1), ("<s>", 0)), BOTH),
    "several in a row": (
        Sequence([ByteLevel(), template("<s> $A </s>", "<s> $A </s> $B:1 </s>:1")]), BOTH,
    ),
    "two at the end": (
        template("<s> $A </s> <s>", "<s> $A </s> $B </s> <s>"), (Ends((0,), (1, 0)),),
    ),
    "pairs of their own": (
        template("<s> $A </s>", "</s> $A </s> $B <s>"), (*BOTH, Ends((1,), (0,))),
    ),
    "a beginning only": (template("<s> $A", "<s> $A $B"), ()),
    "an end only": (template("$A </s>", "$A $B </s>"), ()),
    "none": (None, ()),
    "bytes": (ByteLevel(), ()),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_ends_are_what_the_post_processor_puts_around_a_text(case: str) -> None:
    processor, expected = CASES[case]
    tokenizer = Tokenizer(WordPiece(IDS, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    if processor is not None:
        tokenizer.post_processor = processor
    assert ends_of(tokenizer) == expected
    for text in ("a", "b a", "c", ""):
        for texts in ((text,), (text, "b")):
            assert has_ends(tokenizer.encode(*texts).ids, expected) is bool(expected)


def test_a_tokenizer_that_drops_what_it_does_not_know_marks_no_ends() -> None:
    tokenizer = Tokenizer(BPE({word: index for index, word in enumerate(WORDS[:2])}, []))
    tokenizer.post_processor = template("<s> $A </s>", "<s> $A </s> $B </s>")
    assert ends_of(tokenizer) == ()


@pytest.mark.parametrize("ids", [[], [0], [1], [2], [0, 2], [2, 1], [1, 0], [2, 0, 1]])
def test_ids_that_lack_an_end_do_not_have_both(ids: list[int]) -> None:
    assert not has_ends(ids, BOTH)
    assert has_ends([0, *ids, 1], BOTH)
