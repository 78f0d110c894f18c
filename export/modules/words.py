"""Findings on a module, in words: each with how it was found."""

from collections.abc import Iterator

from addnorm.export.modules.operators.shape import Shape
from addnorm.model.config import Config

WIDTH = 14  # of the names


def lines(shape: Shape, config: Config, limits: list[int]) -> list[str]:
    return [f"  {name:{WIDTH}}{words}" for name, words in _findings(shape, config, limits)]


def _findings(shape: Shape, config: Config, limits: list[int]) -> Iterator[tuple[str, str]]:
    block, notes = shape.blocks[0], shape.notes
    scale = f", times {config.embedding_scale:g}" if config.embedding_scale != 1 else ""
    yield "tokens", f"{config.vocab_size:,} ids, width {shape.width}{scale} (shapes)"
    yield "positions", _positions(shape, config, limits)
    if config.type_vocab_size > 1:
        yield "types", f"{config.type_vocab_size} (shapes)"
    yield "blocks", f"{config.n_layers}, order {config.block} (what leads to what){_extra(config)}"
    yield (
        "attention",
        (
            f"{config.n_heads} heads of {config.head_dims} (shapes),"
            f" {block.attention.scores} (trial: 1 of {block.attention.num_tried} agrees)"
        ),
    )
    yield "queries", f"keys and values from {_matrices(shape)} (numbered entries)"
    yield "feed-forward", f"{config.d_ff}, {config.activation} ({notes['activation']})"
    yield "norms", f"eps {config.eps:g}, {notes['norm']}"
    yield "head", _head(shape, config)


def _positions(shape: Shape, config: Config, limits: list[int]) -> str:
    added = "added to tokens" if shape.embedding.places else "none are added"
    if limits:
        return f"{config.max_positions:,}, {added} (the smallest table or mask has {min(limits):,})"
    return (
        f"{config.max_positions:,}, {added}; the module sets no limit:"
        ' config={"max_positions": N} sets another'
    )


def _extra(config: Config) -> str:
    extra = {"embeddings": config.embedding_norm, "the last block": config.final_norm}
    named = " and ".join(name for name, there in extra.items() if there)
    return f", a norm after {named}" if named else ""


def _matrices(shape: Shape) -> str:
    attention = shape.blocks[0].attention
    parts = (attention.queries, attention.keys, attention.values)
    number = len({source for part in parts for source in part.sources})
    return "one fused matrix" if number == 1 else f"{number} matrices"


def _head(shape: Shape, config: Config) -> str:
    head = shape.head
    row = (
        "of every token" if head.pick is None else f"of a {head.pick} row ({_trial_of_row(shape)})"
    )
    if not config.heads:
        return f"none: it answers with activations {row}"
    (made,) = config.heads.values()
    if head.pick == "last" and made.pick == "every":
        row = f"of the last token ({_trial_of_row(shape)}), served for every token"
    dense = f", after a layer of {made.dense} and {made.activation}" if made.dense else ""
    norm = " and a norm" if made.norm else ""
    return f"logits: {made.width:,} {row}{dense}{norm}"


def _trial_of_row(shape: Shape) -> str:
    return f"trial: {shape.notes['row of the head']}"
