"""A model of transformers in memory: exported as the folder that it would be saved to, and compared
with its own forward."""

import json
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from addnorm.export.sources import sources
from addnorm.export.sources.folder_tokenizer import NoTexts
from addnorm.export.sources.original import digest
from addnorm.export.sources.program import Program, Sample, silence_libraries
from addnorm.export.sources.sources import Reference, Source, UsageError
from addnorm.export.sources.texts import load_tokenizer
from addnorm.model.checkpoints import Choices, sentence_transformers
from addnorm.model.transformer import Transformer
from addnorm.service.runtime.bundle import TOKENIZER


def saves_itself(model: Any) -> bool:
    """True if it is of transformers."""
    return hasattr(model, "save_pretrained") and not isinstance(model, Transformer)


@contextmanager
def saved_source(
    model: Any,
    tokenizer: Path | None,
    labels: tuple[str, ...] | None,
    max_length: int | None,
    samples: tuple[Sample, ...] = (),
    **facts: Any,
) -> Iterator[Source]:
    """The source, whose folder is there until the block ends. UsageError and CheckpointError if the
    model does not fit.

    tokenizer: a folder. labels: in place of the names in the model's config. facts: pooling and
    normalize, where they are not None.
    """
    name = type(model).__qualname__
    # a SentenceTransformer: modules one after the other, the first with a tokenizer
    is_pipeline = isinstance(model, nn.Sequential) and hasattr(model, "encode")
    if not isinstance(model, nn.Module) or not (hasattr(model, "config") or is_pipeline):
        raise UsageError(
            f"the model is a {name}: save it with save_pretrained(folder), and export the folder"
        )
    with TemporaryDirectory() as root:
        folder = Path(root, name)
        with silence_libraries():
            model.save_pretrained(folder)  # type: ignore[operator]
        if (file := folder / TOKENIZER).exists():
            # it is saved with the padding and the cut of its last call
            fields = {**json.loads(file.read_text()), "padding": None, "truncation": None}
            file.write_text(json.dumps(fields))
        for file in tokenizer.iterdir() if tokenizer and tokenizer.is_dir() else ():
            if file.is_file() and not (folder / file.name).exists():
                shutil.copyfile(file, folder / file.name)
        own = Reference("none", samples=samples)
        found = sources.checkpoint(folder, Choices(labels=labels), max_length, own)
        chosen = {fact: value for fact, value in facts.items() if value is not None}
        found = replace(found, facts={**found.facts, **chosen})
        own_tokenizer, limit = None, None
        if not isinstance(found.texts, NoTexts):
            limit = found.texts.max_text_tokens
            if getattr(model, "tokenizer", None) is None:
                own_tokenizer = load_tokenizer(sentence_transformers.read(folder))
        kept = {key: found.origin[key] for key in ("labels", "max_length") if key in found.origin}
        origin = {"module": name, "sha256": digest(model), **kept}
        with closing(Program(model, own_tokenizer, limit)) as program:
            yield sources.with_program(replace(found, name=name, origin=origin), program)
