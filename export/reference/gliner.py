"""A folder that the package gliner writes, as the folder of its transformer and what is behind
that; and the package's own answers."""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save_file
from torch.export import Dim

from addnorm.export.download import files_of
from addnorm.export.graphs.graph import export_module
from addnorm.export.graphs.model_file import Graph
from addnorm.export.graphs.traceable import traceable
from addnorm.export.reference.program import silence_libraries
from addnorm.export.wishes import UsageError, Wishes
from addnorm.model.checkpoints.gliner import Gliner
from addnorm.model.extractor import Extractor
from addnorm.model.weight_files import GLINER, SAFE

WEIGHTS = (".safetensors", ".bin", ".index.json")  # ends of files


# a text, labels, threshold, flat -> names as the package has them: label, score, start, end, text
Answers = Callable[[str, Sequence[str], float, bool], Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class Extraction:
    """fact: the manifest's field. program: what `answers` are of; without them the folder is read
    by us alone."""

    extractor: Extractor
    fact: Mapping[str, Any]
    program: str
    answers: Answers | None

    def export(self) -> Graph:
        """words `[W, d_model]`, labels `[C, d_model]` -> logits."""
        rows = torch.zeros(6, self.extractor.config.d_model)
        shapes = {"words": {0: Dim("W")}, "labels": {0: Dim("C")}}
        with traceable():
            return export_module(
                self.extractor, (rows, rows[:2]), ["words", "labels"], ["logits"], shapes
            )


def open_extraction(folder: Path, gliner: Gliner, wishes: Wishes) -> Extraction:
    """UsageError if there are no answers to compare with."""
    program: tuple[str, Answers | None] = "Addnorm's own reading", None
    if wishes.reference is not None:
        program = getattr(wishes.reference, "__name__", "reference"), wishes.reference
    elif not wishes.own_reading:
        program = _package(folder)
    elif wishes.precisions == ("int8",):
        raise UsageError("int8 is compared with fp32, or with the package gliner: add fp32")
    return Extraction(gliner.extractor, gliner.extraction, *program)


def _package(folder: Path) -> tuple[str, Answers]:
    """The package's name and its answers to one text alone."""
    try:
        import gliner
    except ImportError:
        raise UsageError(
            f"{folder.name} is compared with the package gliner, which is not installed:"
            " pip install gliner. To export without this comparison, use --reference none; the"
            " certificate records it"
        ) from None
    try:
        with silence_libraries():
            model = gliner.GLiNER.from_pretrained(str(folder), map_location="cpu").float()
    except Exception as error:  # of any library
        raise UsageError(f"gliner {gliner.__version__} cannot load {folder}: {error}") from error

    return (
        f"gliner {gliner.__version__}",
        lambda text, labels, threshold, flat: model.predict_entities(
            text, [*labels], flat_ner=flat, threshold=threshold
        ),
    )


@contextmanager
def body_folder(folder: Path, gliner: Gliner) -> Iterator[Path]:
    """The folder of its transformer alone, as transformers writes it, until the block ends."""
    with TemporaryDirectory() as root:
        body = Path(root, folder.resolve().name)
        body.mkdir()
        for name in files_of(folder):
            if name != GLINER and not name.endswith(WEIGHTS):
                shutil.copyfile(folder / name, body / name)
        (body / "config.json").write_text(json.dumps(gliner.fields))
        tensors = {name: tensor.clone().contiguous() for name, tensor in gliner.body.items()}
        save_file(tensors, body / SAFE, {"format": "pt"})
        yield body
