"""Whatever is read wrongly of a checkpoint is refused by the comparison with its authors' program:
every field of our configuration, every weight that a table names, what follows the body, and how
texts are read."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from torch import nn

from addnorm.export import sources
from addnorm.export.wishes import Wishes
from tests.support import multi_vector
from tests.support.families import CLASSES, made, save
from tests.support.misread import misread, verdict
from tests.support.sentence_transformers import write_dense, write_modules, write_settings
from tests.support.task_models import TASK_MODELS

pytestmark = pytest.mark.misread

# after one layer, one form of GELU for another changes less than two programs may differ
DEEP: dict[str, Callable[[Path], Path]] = {
    name: partial(write, num_hidden_layers=3) for name, write in TASK_MODELS.items()
}


def _pooled(mode: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        DEEP["embedder"](folder)
        write_settings(folder / "1_Pooling", pooling_mode=mode, embedding_dimension=36)
        write_modules(folder, Transformer="", Pooling="1_Pooling")
        return folder

    return write


def _dense(folder: Path) -> Path:
    DEEP["embedder"](folder)
    write_dense(folder / "2_Dense", nn.Linear(36, 7))
    paths = {"Pooling": "1_Pooling", "Dense": "2_Dense", "Normalize": "3_Normalize"}
    write_modules(folder, Transformer="", **paths)
    prompts = {"query": "the text ", "document": "a "}
    file = "config_sentence_transformers.json"
    write_settings(folder, file, prompts=prompts, default_prompt_name="query")
    return folder


MODES = ("mean", "cls", "max", "lasttoken", "weightedmean", "mean_sqrt_len_tokens")
FOLDERS: dict[str, Callable[[Path], Path]] = {
    **{name: lambda folder, name=name: save(made(name), folder) for name in CLASSES},  # type: ignore[misc]
    **{f"{mode} pooling": _pooled(mode) for mode in MODES},
    "dense, normalized, prompts": _dense,
    "vectors of tokens": multi_vector.checkpoint,
    **DEEP,
}


@pytest.mark.parametrize("name", FOLDERS)
def test_what_is_read_wrongly_is_refused(name: str, tmp_path: Path) -> None:
    folder = FOLDERS[name](tmp_path / "folder")
    # it makes one number of every token, which is no label
    wishes = Wishes(labels=() if name == "ElectraForPreTraining" else None)
    source = sources.checkpoint(folder, wishes)
    verdicts = [(mutant, verdict(mutant, source)) for mutant in misread(source)]
    counts = Counter((mutant.kind, verdict_) for mutant, verdict_ in verdicts)
    print(
        name,
        *(f"{kind}, {verdict_}: {n}" for (kind, verdict_), n in sorted(counts.items())),
        sep="; ",
    )
    assert [mutant.words for mutant, said in verdicts if said == "SURVIVED"] == []
    assert {said for _, said in verdicts} >= {"refused"}
