"""The matrices of an int8 graph that stay float32, so that a search over texts of one's own finds
what fp32 finds. They are found by measurement, through the code that serves.

The share of the 10 nearest texts that both find is what counts, but it needs all texts and moves in
steps. So matrices are put in order by something finer: how far the vectors of a few texts move
where one matrix alone is int8, for each entry that it has. In this order as few are kept as hold
the share, by bisection.
"""

import hashlib
import json
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from addnorm.corpus.comparison import NUM_NEIGHBOURS, NUM_QUERIES, by_row, mean, neighbours_shared
from addnorm.export.certificate.answered import embed_by_server
from addnorm.export.certificate.certificate import Check
from addnorm.export.certificate.served import CertificationError, path_of
from addnorm.export.graphs import model_file
from addnorm.export.graphs.model_file import Graph
from addnorm.export.graphs.quantize import (
    TABLE,
    Parts,
    has_large_table,
    large_gemms,
    quantize,
    weight_of,
)
from addnorm.export.wishes import Text, UsageError
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.batch import Floats
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.model import Model

MIN_TEXTS = 50  # with fewer, one neighbour of one text is more than most limits allow
ORDER_TEXTS = 64  # by which matrices are put in order
ORDER_S = 600.0  # matrices that have no turn by then are not kept before the others
TEXTS_AT_ONCE = 256
Vectors = NDArray[Any]


def texts_to_search(texts: Sequence[Text]) -> list[str]:
    """The texts that differ, in their order, without pairs. UsageError if they are too few."""
    different = list(dict.fromkeys(text for text in texts if isinstance(text, str)))
    if len(different) < MIN_TEXTS:
        raise UsageError(
            f"keep_recall needs at least {MIN_TEXTS} distinct texts, yours are {len(different)}"
        )
    return different


def digest(texts: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


class Trials:
    """Vectors of texts by graphs that are not the bundle's."""

    def __init__(self, bundle: Bundle, body: Graph, ranges: Mapping[str, Floats]) -> None:
        """bundle: of which all other files are taken. body: in fp32. ranges: of its matrices."""
        self._bundle, self._body, self.ranges = bundle, body, ranges
        self._parts: dict[str, Parts] = {}
        self.table = [TABLE] if has_large_table(body.proto) else []
        self.names = [*self.table, *ranges]

    def size(self, name: str) -> int:
        """The entries of a matrix."""
        dims = {tensor.name: tensor.dims for tensor in self._body.proto.graph.initializer}
        return math.prod(dims[weight_of(name)])

    def share(self, in_fp32: Sequence[str]) -> float:
        """The share of the entries of products that is int8 where these matrices are not."""
        sizes = {name: self.size(name) for name in self.ranges}
        return sum(sizes[name] for name in sizes if name not in in_fp32) / sum(sizes.values())

    def vectors(self, texts: Sequence[str], in_int8: Sequence[str] = ()) -> Vectors:
        """`[n, width]` with these matrices in int8."""
        graph = self._body
        if in_int8:
            int8_ranges = {name: self.ranges[name] for name in in_int8 if name != TABLE}
            graph = quantize(self._body, int8_ranges, self._parts, TABLE in in_int8)
        manifest, precision = self._bundle.manifest, "int8" if in_int8 else "fp32"
        with TemporaryDirectory() as root:
            folder = Path(root, manifest.name, str(manifest.version))
            folder.mkdir(parents=True)
            heads = () if manifest.as_it_is else map(bundles.head_file, manifest.heads)
            for name in (bundles.TOKENIZER, *heads):
                shutil.copyfile(self._bundle.path / name, folder / name)
            model_file.save(graph, folder / "model.onnx")
            fields = manifest.model_dump(exclude={"files", "format"})
            changes = {"precisions": {precision: "model.onnx"}, "default_precision": precision}
            return vectors_of(bundles.write_manifest(folder, {**fields, **changes}), texts)


def vectors_of(bundle: Bundle, texts: Sequence[str], precision: str | None = None) -> Vectors:
    """Vectors as the bundle serves them. precision: the default one if None."""
    manifest = bundle.manifest
    precision = precision or manifest.default_precision
    changes = {"precisions": {precision: manifest.precisions[precision]}}
    narrow = manifest.model_copy(update={**changes, "default_precision": precision})
    with path_of(Model(replace(bundle, manifest=narrow))) as path:
        return np.concatenate(
            [
                embed_by_server(
                    path.service, narrow, texts[start : start + TEXTS_AT_ONCE], precision
                ).vectors
                for start in range(0, len(texts), TEXTS_AT_ONCE)
            ]
        )


def share_of_neighbours(a: Vectors, b: Vectors) -> float:
    """The share of the nearest texts that both have, of each of at most NUM_QUERIES texts."""
    share = neighbours_shared(a, b, min(NUM_NEIGHBOURS, len(a) - 1))
    return share or 0.0


def choose(
    trials: Trials,
    texts: Sequence[str],
    target: float,
    failure: Callable[[Sequence[str]], str] = lambda in_fp32: "",
) -> list[str]:
    """The names of the matrices that stay float32, the costliest first. failure: why a graph with
    these matrices in float32 is not certified, "" if it is. CertificationError if no graph that has
    int8 holds the target and is certified."""
    exact, names = trials.vectors(texts), trials.names

    def measure_share(num_kept: int) -> float:
        start = time.monotonic()
        share = share_of_neighbours(exact, trials.vectors(texts, [*names[num_kept:]]))
        tqdm.write(
            f"{num_kept} of {len(names)} matrices in fp32: {share:.2%} of the {NUM_NEIGHBOURS}"
            f" nearest neighbours shared ({time.monotonic() - start:.0f} s)"
        )
        return share

    is_held = measure_share(0) >= target
    if is_held and not failure([]):
        return []
    # the table goes first: as fp32 it takes memory, but no time
    names_in_order = _in_order(trials, texts[:ORDER_TEXTS], exact[:ORDER_TEXTS])
    names = [*trials.table, *names_in_order]
    low, high = 1, len(names) - 1
    best = measure_share(high) if high else 0.0
    if best < target:
        raise CertificationError(
            f"--keep-recall {target:g} cannot be reached in int8: with one of {len(names)}"
            f" matrices in int8, {best:.2%} of the {NUM_NEIGHBOURS} nearest neighbours are shared"
            " with fp32"
        )
    highest = high
    while low < high and not is_held:
        middle = (low + high) // 2
        if measure_share(middle) >= target:
            high = middle
        else:
            low = middle + 1
    # a limit of the certificate may need more of them than the share does
    low = high = 1 if is_held else high
    while (reason := failure(names[:high])) and high < highest:
        low, high = high + 1, min(highest, 2 * high)
        tqdm.write(f"{low - 1} of {len(names)} matrices in fp32: {reason}")
    if reason:
        raise CertificationError(f"--keep-recall {target:g}: with one matrix in int8, {reason}")
    while low < high:
        middle = (low + high) // 2
        if failure(names[:middle]):
            low = middle + 1
        else:
            high = middle
    return names[:high]


def _in_order(trials: Trials, texts: Sequence[str], exact: Vectors) -> list[str]:
    """The names of the products' matrices, those first that cost most for each entry."""
    ends, costs = time.monotonic() + ORDER_S, dict[str, float]()
    for name in tqdm(trials.ranges, desc="int8 alone", unit=" matrices", disable=None):
        if time.monotonic() > ends:
            break
        _, cosines, _ = by_row(exact, trials.vectors(texts, [name]))
        costs[name] = (1 - mean(cosines)) / trials.size(name)
    return sorted(trials.ranges, key=lambda name: -costs.get(name, 0.0))


def certify(bundle: Bundle, body: Graph, samples: Sequence[Text]) -> dict[str, Any]:
    """The certificate's words on the bundle's own int8 beside fp32. CertificationError if less is
    shared than it was exported with.

    body: fp32, by the exporter installed here.
    """
    texts, int8 = texts_to_search(samples), bundle.manifest.int8
    assert int8.keep_recall is not None
    exact = Trials(bundle, body, {}).vectors(texts)
    share = share_of_neighbours(exact, vectors_of(bundle, texts, "int8"))
    check = Check("--texts", "nearest not shared", "int8", 1 - share, 1 - int8.keep_recall)
    if not check.passed:
        raise CertificationError(
            f"int8 shares {share:.2%} of the {NUM_NEIGHBOURS} nearest neighbours among"
            f" {len(texts):,} texts with fp32, required are {int8.keep_recall:.2%}"
        )
    return {
        "check": check,
        "recall": {
            "nearest": NUM_NEIGHBOURS,
            "shared": share,
            "at_least": int8.keep_recall,
            "texts": len(texts),
            "queries": min(NUM_QUERIES, len(texts)),
            "texts_sha256": digest(texts),
            "matrices": len(large_gemms(body.proto)) + has_large_table(body.proto),
            "in_fp32": list(int8.float_weights),
        },
    }
