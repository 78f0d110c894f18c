"""Every family and head through HTTP, beside transformers.

Each checkpoint is written by transformers itself, exported and served. What is served is compared
on ragged batches and on grids padded right, left and with holes; bits alone, co-batched and padded.
Of each family, a larger body is served in int8 too.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from addnorm.export import sources
from addnorm.export.exporting import export
from addnorm.export.wishes import Wishes
from tests.conftest import client_of, inference_of
from tests.support.beside import must_pass
from tests.support.exports import shared_exports
from tests.support.families import CLASSES, LARGER, family_of, made, save, sequences

pytestmark = pytest.mark.families
INT8 = {"OPT": "OPTForCausalLM"}  # the class that is served in int8, if not the body's


@pytest.fixture(scope="module", autouse=True)
def proved() -> Iterator[None]:
    """Each family's body is exported twice, for all of its heads."""
    with shared_exports(proved=True):
        yield


@pytest.mark.parametrize("class_name", CLASSES)
def test_a_class_is_served_as_transformers_computes_it(class_name: str, tmp_path: Path) -> None:
    model = exported(class_name, tmp_path)
    service = inference_of(tmp_path / "bundles", invariance_check_share=0)
    with client_of(service) as client:
        must_pass(client, class_name, model, sequences(model))


def exported(class_name: str, root: Path) -> PreTrainedModel:
    family = family_of(class_name)
    in_int8 = class_name == INT8.get(family, f"{family}Model")
    model = made(class_name, **(LARGER[family] if in_int8 else {}))
    wishes = Wishes(precisions=("fp32", "int8") if in_int8 else ("fp32",))
    source = sources.checkpoint(save(model, root / class_name), wishes)
    export(source, root / "bundles", class_name)
    return model
