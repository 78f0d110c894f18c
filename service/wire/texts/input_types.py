"""What texts are for, in the words of several dialects -> one of the model's prompts, as
sentence-transformers' encode_query and encode_document choose it: "query" or "document", and none
where the model has no prompt of that very name."""

from addnorm.service.engine.model import Model
from addnorm.service.errors import InvalidInput
from addnorm.service.wire.texts.texts import TextsToTokenize

# the first of these prompts that the model has
PROMPTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("query", "search_query"), ("query",)),
    **dict.fromkeys(("document", "passage", "corpus", "search_document"), ("document",)),
    "retrieval.query": ("retrieval.query", "query"),
    "retrieval.passage": ("retrieval.passage", "document"),
    "classification": ("classification",),
    "clustering": ("clustering",),
    "separation": ("clustering", "separation"),
    "text-matching": ("text-matching", "sts"),
    "text": (),
}


def prompt_of(model: Model, field: str, input_type: str, named: str | None) -> str | None:
    """The name of the model's prompt for texts of this type. field: the caller's name for the type.
    named: the prompt that the model's name has. InvalidInput if that is another one."""
    prompts = model.bundle.manifest.prompts
    name = next((name for name in PROMPTS[input_type] if name in prompts), None)
    if named is not None and named != name:
        raise InvalidInput(
            f"{field} is {input_type!r}, but model already names the prompt {named[:60]!r}: send a"
            " model without a prompt",
            param=field,
        )
    return name


def typed(
    texts: TextsToTokenize, field: str, input_type: str, named: str | None
) -> TextsToTokenize:
    """The texts with the prompt of this type, without one if the model has none of it. The rest is
    as in `prompt_of`."""
    name = prompt_of(texts.model, field, input_type, named)
    if name is None:  # and no default prompt either
        return texts._replace(prompt="")
    return TextsToTokenize.prompted(texts.field, texts.texts, texts.truncate, texts.model, name)
