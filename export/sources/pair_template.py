"""The text that a reranker's authors write around a query and a document, by the chat template of
their tokenizer: roles are query and document, as sentence-transformers and vLLM ask for them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from addnorm.export.sources.folder_tokenizer import NoTexts
from addnorm.service.runtime.tokenizing.pair_text import Template

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FIRST, SECOND = "zq4query7f", "zq4document7f"  # that no template has


def read(
    tokenizer: "PreTrainedTokenizerBase", instruction: str, settings: Mapping[str, Any]
) -> Template | None:
    """None if the tokenizer has no template for a query and a document.

    instruction: of the default prompt, "" for the template's own. settings: of the template.
    NoTexts if it does not keep texts as they are, or if the tokenizer adds special tokens to it.
    """
    if not tokenizer.chat_template:
        return None
    try:
        told = render(tokenizer, instruction, FIRST, SECOND, settings)
    except Exception:  # a chat's template fails by any error of its own for other roles
        return None
    before, first, rest = told.partition(FIRST)
    between, second, behind = rest.partition(SECOND)
    if not (first and second):
        return None
    template = before, between, behind
    for texts in ((" a\n", "\n b "), ("", "")):
        if render(tokenizer, instruction, *texts, settings) != join(template, *texts):
            raise NoTexts("its chat template changes a query or a document, which is not supported")
    if tokenizer.num_special_tokens_to_add(pair=False):
        raise NoTexts("its tokenizer adds special tokens to its chat template: not supported")
    return template


def render(
    tokenizer: "PreTrainedTokenizerBase",
    instruction: str,
    query: str,
    document: str,
    settings: Mapping[str, Any],
) -> str:
    """The whole text, by the authors' template."""
    messages = [{"role": "query", "content": query}, {"role": "document", "content": document}]
    if instruction:
        messages.insert(0, {"role": "system", "content": instruction})
    made = tokenizer.apply_chat_template(messages, tokenize=False, **settings)
    assert isinstance(made, str)
    return made


def join(template: Template, first: str, second: str) -> str:
    """The whole text, by the template that was read."""
    before, between, behind = template
    return f"{before}{first}{between}{second}{behind}"
