"""What callers call the texts of which others are made: a query and documents, texts and labels, a
sentence and those it is compared with."""

from collections.abc import Callable

# the index of a text, and which of its pair (None: both, or no pair) -> its name
Place = Callable[[int, int | None], str]


def in_list(field: str) -> Place:
    """The texts as the caller sent them in one field."""
    return lambda index, part: f"{field}[{index}]" + ("" if part is None else f"[{part}]")


def query_with(field: str) -> Place:
    """Pairs of `query` and each text of the field."""
    return lambda index, part: _either(part, "query", f"{field}[{index}]")


def text_with_label(field: str, num_labels: int) -> Place:
    """Pairs of each text and each candidate label in its template, the labels of one text first."""
    return lambda index, part: _either(
        part,
        f"{field}[{index // num_labels}]",
        f"candidate_labels[{index % num_labels}] in hypothesis_template",
    )


def source_or_sentence(index: int, part: int | None) -> str:
    """`source_sentence` before `sentences`."""
    return f"inputs.sentences[{index - 1}]" if index else "inputs.source_sentence"


def _either(part: int | None, first: str, second: str) -> str:
    return f"{first} with {second}" if part is None else (first, second)[part]
