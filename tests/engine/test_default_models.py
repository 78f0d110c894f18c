"""Which model answers a request for a task that names none."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from addnorm.service.engine.registry import Models
from addnorm.service.errors import InvalidInput, StartupError
from addnorm.service.loading.loader import load_all
from addnorm.service.settings import Settings


def models(defaults: Any = None, **tasks: tuple[str, ...]) -> Models:
    """Served models that can do these tasks, by their names."""
    made: Any = [
        SimpleNamespace(
            bundle=SimpleNamespace(
                manifest=SimpleNamespace(name=name, version=version, prompts={}),
                ref=f"{name}/{version}",
                tasks=own if version == 2 else ("classify",),
                compares_tokens="multi_vector" in own,
            )
        )
        for name, own in tasks.items()
        for version in (1, 2)
    ]
    return Models(made, None, defaults or {})


SEVERAL: dict[str, tuple[str, ...]] = {"small": ("embed",), "large": ("embed",), "one": ("rerank",)}


def test_the_one_model_that_can_is_taken_by_its_latest_version() -> None:
    assert models(**SEVERAL).find(None, "rerank").bundle.ref == "one/2"


def test_a_model_of_pairs_reranks_before_models_that_compare_tokens() -> None:
    late = {"late": ("multi_vector", "embed", "rerank")}
    assert models(**late, one=("rerank",)).find(None, "rerank").bundle.ref == "one/2"
    assert models(**late).find(None, "rerank").bundle.ref == "late/2"


def test_the_default_is_taken_where_several_can() -> None:
    assert models({"embed": "large"}, **SEVERAL).find(None, "embed").bundle.ref == "large/2"
    assert models({"embed": "small/2"}, **SEVERAL).find(None, "embed").bundle.ref == "small/2"
    assert models({"embed": "large"}, **SEVERAL).find("small", "embed").bundle.ref == "small/2"


@pytest.mark.parametrize(
    ("defaults", "ref", "task", "words"),
    [
        ({}, None, "sparse", "no model served here can make sparse vectors"),
        ({}, None, "embed", "large, small can embed texts: send one of them, or set"
         " ADDNORM_DEFAULT_MODELS=embed=large"),
        ({}, "one", "tag", "one/2 cannot tag tokens: it can rerank"),
        ({}, "one/1", "rerank", "one/1 cannot rerank: it can classify texts"),
    ],
)  # fmt: skip
def test_a_request_that_finds_no_model_is_told_which_there_are(
    defaults: Any, ref: str | None, task: Any, words: str
) -> None:
    with pytest.raises(InvalidInput, match=words) as refused:
        models(defaults, **SEVERAL).find(ref, task)
    assert refused.value.param == "model"


def test_every_model_embeds_if_it_is_named() -> None:
    assert models(**SEVERAL).find("one", "embed").bundle.ref == "one/2"


@pytest.mark.parametrize(
    ("defaults", "words"),
    [
        ({"embed": "gone"}, "DEFAULT_MODELS: embed=gone: model 'gone' is not served here"),
        ({"tag": "one"}, "DEFAULT_MODELS: tag=one: one/2 cannot tag tokens: it can rerank"),
    ],
)
def test_a_default_that_cannot_answer_ends_the_start(defaults: Any, words: str) -> None:
    with pytest.raises(StartupError, match=words):
        models(defaults, **SEVERAL)


def test_a_new_version_that_a_default_cannot_mean_is_refused() -> None:
    served = models({"rerank": "one", "embed": "small"}, **SEVERAL)
    manifest = SimpleNamespace(name="one", version=3, prompts={})
    new: Any = SimpleNamespace(manifest=manifest, ref="one/3", tasks=("classify",))
    with pytest.raises(StartupError, match="rerank=one: one/3 cannot rerank"):
        served.check_new(new)
    served.pin("one", 2)
    served.check_new(new)  # the name does not mean it
    served.pin("one", None)
    new.tasks = ("rerank",)
    served.check_new(new)


def test_a_folder_that_holds_no_bundles_is_told_for_what_it_is(small: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for folder, words in (
        (small / "notebook" / "1", f"is a bundle: .*{small}$"),
        (small / "notebook", f"has the versions of one bundle: .*{small}$"),
        (tmp_path, f"is a checkpoint: export and serve it with `addnorm serve {tmp_path}`"),
    ):
        with pytest.raises(StartupError, match=words):
            load_all(folder, Settings())


def test_a_default_for_no_task_ends_the_start(small: Any) -> None:
    settings = Settings(default_models={"translate": "notebook"})
    with pytest.raises(StartupError, match="ADDNORM_DEFAULT_MODELS has 'translate': tasks are em"):
        load_all(small, settings)
