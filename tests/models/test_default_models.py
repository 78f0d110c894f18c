"""Which model answers a request for a task that names none."""

from types import SimpleNamespace
from typing import Any

import pytest

from addnorm.service.errors import InvalidInput, ModelNotFound, StartupError
from addnorm.service.loading.loader import load_all
from addnorm.service.models.registry import Models
from addnorm.service.settings import Settings


def models(defaults: Any = None, **tasks: tuple[str, ...]) -> Models:
    """Served models that can do these tasks, by their names."""
    made: Any = [
        SimpleNamespace(
            bundle=SimpleNamespace(
                manifest=SimpleNamespace(name=name, version=version, prompts={}),
                ref=f"{name}/{version}",
                tasks=own if version == 2 else ("classify",),
            )
        )
        for name, own in tasks.items()
        for version in (1, 2)
    ]
    return Models(made, None, defaults or {})


SEVERAL: dict[str, tuple[str, ...]] = {"small": ("embed",), "large": ("embed",), "one": ("rerank",)}


def test_the_one_model_that_can_is_taken_by_its_latest_version() -> None:
    assert models(**SEVERAL).find(None, "rerank").bundle.ref == "one/2"


def test_the_default_is_taken_where_several_can() -> None:
    assert models({"embed": "large"}, **SEVERAL).find(None, "embed").bundle.ref == "large/2"
    assert models({"embed": "small/2"}, **SEVERAL).find(None, "embed").bundle.ref == "small/2"
    assert models({"embed": "large"}, **SEVERAL).find("small", "embed").bundle.ref == "small/2"


@pytest.mark.parametrize(
    ("defaults", "ref", "task", "words"),
    [
        ({}, None, "sparse", "no model served here can make sparse vectors"),
        ({}, None, "embed", "large, small can embed texts: name one, or set"
         " ADDNORM_DEFAULT_MODELS=embed=large"),
        ({}, "one", "tag", "one/2 cannot tag tokens: it can rerank"),
        ({}, "one/1", "rerank", "one/1 cannot rerank: it can classify texts"),
        ({"tag": "one"}, None, "tag", "one/2 cannot tag tokens: it can rerank"),
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


def test_a_default_that_is_not_served_is_named() -> None:
    with pytest.raises(ModelNotFound, match="'gone' is not served here"):
        models({"embed": "gone"}, **SEVERAL).find(None, "embed")


def test_a_default_for_no_task_ends_the_start(small: Any) -> None:
    settings = Settings(default_models={"translate": "notebook"})
    with pytest.raises(StartupError, match="ADDNORM_DEFAULT_MODELS has 'translate': tasks are em"):
        load_all(small, settings)
