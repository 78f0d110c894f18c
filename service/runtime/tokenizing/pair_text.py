"""A pair of texts as one, in the template of a reranker's authors."""

import tokenizers

Template = tuple[str, str, str]  # before the first text, between the two, behind the second


def pair_text(
    template: Template,
    pair: tuple[str, str],
    tokenizer: tokenizers.Tokenizer,
    max_tokens: int | None,
) -> str | None:
    """max_tokens: the second text is cut until the whole has no more; the rest must stay, because
    the answer is read at its end. None for any number. Returns None if the first leaves no room.
    """
    (first, second), (before, between, behind) = pair, template
    while True:
        told = f"{before}{first}{between}{second}{behind}"
        over = 0 if max_tokens is None else len(tokenizer.encode(told)) - max_tokens
        if over <= 0:
            return told
        offsets = tokenizer.encode(second, add_special_tokens=False).offsets
        if over > len(offsets):
            return None
        second = second[: offsets[-over][0]]
