"""Every family and head through HTTP, beside transformers: `make families`; minutes.

Each checkpoint is written by transformers itself, exported and served. What is served is compared
on ragged batches and on grids padded right, left and with holes; bits alone, co-batched and padded.
Of each family, a larger body is served in int8 too.
"""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
from tqdm import tqdm
from transformers import PreTrainedModel

from addnorm.export import sources
from addnorm.export.writer import Plan, export
from tests.conftest import inference_of, serving
from tests.support.beside import compared, report
from tests.support.exports import shared_exports
from tests.support.families import CLASSES, LARGER, family_of, made, save, sequences

INT8 = {"OPT": "OPTForCausalLM"}  # the class that is served in int8, if not the body's


def main(names: Sequence[str]) -> None:
    """names: parts of the names of classes; all without."""
    chosen = [name for name in CLASSES if not names or any(part in name for part in names)]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        with shared_exports(proved=True):  # each family's body twice, for all of its heads
            models = dict(_exported(chosen, root))
        with serving(inference_of(root / "bundles", invariance_check_share=0)) as url:
            client = httpx.Client(base_url=url, timeout=60)
            served = tqdm(models.items(), desc="ask")
            rows = [
                row
                for name, model in served
                for row in compared(client, name, model, sequences(model))
            ]
    report(rows)


def _exported(names: Sequence[str], root: Path) -> Iterator[tuple[str, PreTrainedModel]]:
    for class_name in tqdm(names, desc="export"):
        family = family_of(class_name)
        in_int8 = class_name == INT8.get(family, f"{family}Model")
        model = made(class_name, **(LARGER[family] if in_int8 else {}))
        source = sources.checkpoint(save(model, root / class_name))
        plan = Plan(precisions=("fp32", "int8") if in_int8 else ("fp32",))
        export(source, root / "bundles", class_name, None, plan)
        yield class_name, model


if __name__ == "__main__":
    main(sys.argv[1:])
