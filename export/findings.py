"""Findings in a source, in words, before anything is written."""

from collections.abc import Iterator, Sequence

from addnorm.export.sources.folder_tokenizer import NoTexts
from addnorm.export.sources.sources import Source
from addnorm.export.sources.texts import Texts, is_as_written
from addnorm.model.config import Pick
from addnorm.service.runtime.manifest import Pooling, tasks_of

HUB = ("repository", "revision")  # of a source's origin
NUM_SHOWN = 5  # of labels, files and keys
POOLINGS: dict[Pooling, str] = {
    "mean": "the mean of its tokens",
    "first": "its first token",
    "last": "its last token",
    "max": "the largest values of its tokens",
    "weighted_mean": "the mean of its tokens, weighted by position",
    "mean_sqrt": "the sum of its tokens by the root of their number",
}
PICKS: dict[Pick, str] = {
    "every": "for each token",
    **{pooling: f"for each sequence, from {words}" for pooling, words in POOLINGS.items()},
}


def lines(source: Source) -> Iterator[str]:
    """A line a finding."""
    config, loaded = source.model.config, source.loaded
    if loaded:
        named = "@".join(source.origin[key] for key in HUB if key in source.origin)
        yield f"checkpoint: {named or source.folder}"
        yield f"family: {loaded.model_type}, {loaded.head or 'without a head'}"
    labels = source.facts["labels"]
    counts = {
        "layer": config.n_layers,
        "attention head": config.n_heads,
        "position": config.max_positions,
        "token type": config.type_vocab_size,
    }
    numbers = (f"{count:,} {what}{'s' * (count > 1)}" for what, count in counts.items())
    rest = f"d_model {config.d_model}, vocabulary of {config.vocab_size:,}"
    yield f"shape: {', '.join(numbers)}, {rest}"
    for output, head in config.heads.items():
        names = f": {_shorten(labels)}" if output == "logits" and labels else ""
        yield f"{output}: {head.width:,} {PICKS[head.pick]}{names}"
    yield f"tasks: {', '.join(tasks_of(config.heads, labels, config.vocab_size, config.causal))}"
    normalized = "normalized" if source.facts["normalize"] else "not normalized"
    yield f"pooling: {POOLINGS[source.facts['pooling']]}, {normalized}"
    if loaded:
        default = loaded.default_prompt_name
        listed = _shorten([f"{name} {prompt!r}" for name, prompt in loaded.prompts.items()])
        listed += f"; {default} if a request names none" if default else ""
        yield f"prompts: {listed or 'none'}"
    texts = source.texts
    yield f"texts: {f'no, because {texts}' if isinstance(texts, NoTexts) else texts}"
    if loaded and not isinstance(texts, NoTexts):
        yield f"tokenizer: {_tokenizer(source, texts)}"
    found = source.compared_with()
    name = found.get("name") or ("a preset" if found["kind"] == "preset" else "itself alone")
    outputs = found.get("outputs", [])
    parts = [*([f"{', '.join(outputs)} of token ids"] if outputs else []), *found.get("texts", [])]
    if "samples" in found:
        parts.append(f"{found['samples']:,} samples of your own")
    yield f"compared with: {name}{': ' if parts else ''}{'; '.join(parts)}"
    if loaded:
        num_bytes = sum(file.stat().st_size for file in loaded.files)
        types, names = " and ".join(loaded.dtypes), _shorten([*source.origin["weights"]])
        yield f"weights: {num_bytes / 1e6:,.1f} MB of {types} in {names}"
        ignored = [key for key in loaded.unused if not key.endswith(".")]  # others are prefixes
        yield f"ignored weights: {_shorten(ignored) or 'none'}"
        if loaded.unread:
            yield f"fields that are not read: {_shorten(loaded.unread)}"
        yield from not_served(source)


def not_served(source: Source) -> Iterator[str]:
    """The authors' own parts beside it, and where they differ from the server's defaults."""
    loaded = source.loaded
    if loaded and loaded.beside:
        yield f"beside it, not served: {', '.join(loaded.beside)}"
    if loaded and loaded.activation == "Identity":
        yield "scores of pairs: their authors' are the logits (Identity): ask with raw_scores"
    if loaded and loaded.similarity != "cosine":
        yield f"similarity: {loaded.similarity}"


def _tokenizer(source: Source, texts: Texts) -> str:
    """Which it is, and where it gives other token ids than the folder's file."""
    if is_as_written(source.origin):
        return "the folder's file as it is written"
    made = f"{texts.read_by} of transformers"
    if texts.unlike_file is None:
        return made
    if not texts.unlike_file.num:
        return (
            f"{made}, which reads {texts.unlike_file.num_asked:,} texts as the folder's file does"
        )
    return (
        f"{made}, unlike the folder's file as it is written in {texts.unlike_file}; to read texts"
        " by that file, export with --tokenizer-as-written"
    )


def _shorten(names: Sequence[str]) -> str:
    more = f" and {len(names) - NUM_SHOWN:,} more" if len(names) > NUM_SHOWN else ""
    return ", ".join(names[:NUM_SHOWN]) + more
