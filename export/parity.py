"""The certificate: the graphs are exactly the reference's (`exact.py`), what is served is near to it, case by case,
and its bits are equal to themselves.

Cases go through the server's own decode, scheduler, engine and encode; a few through the bare graph. The
reference is always the plain `Padded` model in PyTorch, so that packing is proved too.
"""

import asyncio
import platform
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from numpy.typing import NDArray
from starlette.datastructures import Headers
from tqdm import tqdm

from addnorm.export import exact, texts, tolerances
from addnorm.model.transformer import Transformer
from addnorm.service.inference.pipeline import Inference
from addnorm.service.models.registry import PADDINGS, Model, Models
from addnorm.service.protocols.codec.bodies import RawRequest
from addnorm.service.protocols.native import decode
from addnorm.service.runtime import selfcheck
from addnorm.service.runtime.bundle import TOKENIZER, Bundle
from addnorm.service.scheduling.deadline import Deadline
from addnorm.service.settings import Settings

Array = NDArray[Any]
MAX_LOGITS = 4_000_000  # values compared per case; beyond it the last token's stand for all
BIT_LENGTHS = (1, 2, 3, 5, 8, 16, 17, 33, 64, 100, 129, 512)
PATIENCE_S = 3600.0  # for one case: a slow machine is no fault of the graph


class CertificationError(Exception):
    """A check failed. The message names the case in words."""


@dataclass(frozen=True)
class Check:
    """One line of the certificate. `difference` is in the unit of `limit`; bitwise checks count unequal cases."""

    case: str
    output: str
    precision: str
    difference: float
    limit: float

    @property
    def passed(self) -> bool:
        return self.difference <= self.limit  # False for NaN


@dataclass(frozen=True)
class Case:
    """A request: rows of token ids, and a mask or none."""

    name: str
    input_ids: list[list[int]]
    attention_mask: list[list[int]] | None = None

    def grid(self) -> tuple[Array, Array]:
        """input_ids, mask `[B, S]`; ragged rows are padded on the right."""
        width = max(map(len, self.input_ids))
        ids = np.array([row + [0] * (width - len(row)) for row in self.input_ids], np.int64)
        mask = self.attention_mask or [
            [1] * len(row) + [0] * (width - len(row)) for row in self.input_ids
        ]
        return ids, np.array(mask, np.int64)


def certify(
    bundle: Bundle, reference: Transformer, checkpoint: Path | None = None
) -> dict[str, Any]:
    """The certificate of `bundle` against `reference` (layout padded). CertificationError names what failed.

    checkpoint: the folder it was made of; a bundle with a tokenizer must have one.
    """
    checks = same(bundle, reference)
    model = Model(bundle, "cpu")
    checks += near(model, reference, checkpoint)
    return {
        "passed": True,
        "processor": processor(),
        "versions": exact.versions(),
        "provider": "cpu",
        "reference": "PyTorch, layout padded",
        "checks": [asdict(check) for check in checks],
        "known_answer": {
            name: selfcheck.make_known_answer(engine, bundle.manifest.limits)
            for name, engine in model.engines.items()
        },
    }


def same(bundle: Bundle, reference: Transformer) -> list[Check]:
    """What must be exactly as in the reference. Comes first, so that no session sees a wrong graph."""
    try:
        files = exact.Files.read(bundle)
    except ValueError as error:
        raise CertificationError(str(error)) from None
    return compare(bundle, files, exact.Expected.of(reference, bundle.manifest))


def compare(bundle: Bundle, files: exact.Files, expected: exact.Expected) -> list[Check]:
    """Ends with CertificationError at the first comparison that finds a difference."""
    checks = []
    for (precision, comparison), words in exact.compare(files, expected, bundle.manifest):
        if words:
            more = f"; and {len(words) - 3} more" if len(words) > 3 else ""
            raise CertificationError(
                f"{comparison} ({precision}): {'; '.join(words[:3])}{more}{_other_versions(bundle)}"
            )
        checks.append(Check(comparison, "differences", precision, 0, 0))
        tqdm.write(_table_row(checks[-1:]))
    return checks


def _other_versions(bundle: Bundle) -> str:
    """Which versions the bundle was exported with, where they are not those that it is compared with."""
    then, now = bundle.manifest.versions, exact.versions()
    others = [
        f"{name} {then.get(name, 'unknown')} (here {now[name]})"
        for name in now
        if then.get(name) != now[name]
    ]
    return (
        f". It was exported with {', '.join(others)}, and other versions may write other nodes: verify it with those,"
        " or export it again"
        if others
        else ""
    )


def near(model: Model, reference: Transformer, checkpoint: Path | None = None) -> list[Check]:
    """What is served against PyTorch, case by case, and its bits against themselves. checkpoint: as in `certify`."""
    bundle, checks = model.bundle, list[Check]()
    with _path(model) as path:
        precisions = bundle.manifest.precisions
        of_texts = _text_checks(path, reference, checkpoint)
        work = [
            (precision, check)
            for precision in precisions
            for check in [*_checks(path, reference, precision), *of_texts]
        ]
        for precision, (case, compare) in tqdm(
            work, desc=f"certify {bundle.ref}", unit="case", disable=None
        ):
            found = [
                Check(case, output, precision, *result) for output, *result in compare(precision)
            ]
            checks.extend(found)
            tqdm.write(_table_row(found))
    if failed := [check for check in checks if not check.passed]:
        first = failed[0]
        raise CertificationError(
            f"{len(failed)} of {len(checks)} checks failed; {first.case}: {first.output} ({first.precision}):"
            f" {first.difference:.3g}, the limit is {first.limit:.3g}"
        )
    return checks


def _table_row(checks: list[Check]) -> str:
    """The case's measure that comes nearest to its limit; the certificate has them all."""
    worst = max(checks, key=lambda check: (not check.passed, check.difference / (check.limit or 1)))
    verdict = "ok" if worst.passed else "FAILED"
    return (
        f"{worst.precision}  {worst.case:22s} {worst.output:28s} {worst.difference:9.2g} of {worst.limit:7.1g}"
        f"  {verdict}, worst of {len(checks)} measures"
    )


class _Path:
    """The server's path without HTTP: a body in, the parsed answer out."""

    def __init__(self, model: Model) -> None:
        settings = Settings(max_response_bytes=2**32)
        self.model = model
        self.inference = Inference(Models([model]), settings)

    def ask(self, case: Case, precision: str, **options: Any) -> dict[str, Any]:
        body = {"input_ids": case.input_ids, "precision": precision, **options}
        if case.attention_mask is not None:
            body["attention_mask"] = case.attention_mask
        return asyncio.run(self._answer(orjson.dumps(body)))

    async def _answer(self, body: bytes) -> dict[str, Any]:
        deadline = Deadline(PATIENCE_S)
        query, encode = await decode(RawRequest(body, Headers(), deadline), self.inference)
        payload, _ = await self.inference.run(query, encode, deadline)
        return orjson.loads(b"".join(payload.parts))  # type: ignore[no-any-return]


@contextmanager
def _path(model: Model) -> Iterator[_Path]:
    path = _Path(model)
    yield path
    path.inference.close()


Compare = Callable[[str], Iterable[tolerances.Result]]  # called with a precision


def _checks(path: _Path, reference: Transformer, precision: str) -> list[tuple[str, Compare]]:
    """Every case by name, as a function to be called with the precision."""
    bundle = path.model.bundle
    against_torch = [
        (case.name, partial(_against_torch, path, case, reference)) for case in cases(bundle)
    ]
    return [
        *against_torch,
        ("bare graph, pads holes", partial(_bare_graph, path, reference)),
        ("padded like alone", partial(_unequal_paddings, path)),
        ("co-batched like alone", partial(_unequal_company, path)),
        ("bare graph, its bits", partial(_bare_bits, path)),
    ]


def _text_checks(
    path: _Path, reference: Transformer, checkpoint: Path | None
) -> list[tuple[str, Compare]]:
    bundle = path.model.bundle
    if TOKENIZER not in bundle.manifest.files:
        return []
    if checkpoint is None:
        raise CertificationError(
            f"{bundle.ref} has a tokenizer: the folder it came from is needed to certify it"
        )
    return texts.checks(path.inference, bundle, reference, checkpoint)


def cases(bundle: Bundle) -> list[Case]:
    """The seeded requests of the certificate."""
    limits = bundle.manifest.limits
    longest = limits.max_positions
    one, full, *ragged = (
        s.tolist() for s in selfcheck.sequences(limits, [1, longest, 3, 29, 7, 60, 2])
    )
    grids = {
        where: [selfcheck.place(np.array(s), 64, where) for s in ragged]
        for where in ("right", "left", "holes")
    }
    padded = [
        Case(
            f"pads {where}",
            [ids[0].tolist() for ids, _ in grid],
            [mask[0].tolist() for _, mask in grid],
        )
        for where, grid in grids.items()
    ]
    ids, mask = padded[0].grid()
    mask[1] = 0
    return [
        Case("length 1", [one]),
        Case("lowest and highest id", [[0], [limits.vocab_size - 1]]),
        Case(f"maximum length {longest}", [full]),
        Case("ragged", ragged),
        *padded,
        Case("a row of pads alone", ids.tolist(), mask.tolist()),
    ]


def _against_torch(
    path: _Path, case: Case, reference: Transformer, precision: str
) -> Iterator[tolerances.Result]:
    """Every output over real tokens."""
    ids, mask = case.grid()
    with torch.no_grad():
        activations, mean, rstd = (
            t.numpy() for t in reference(torch.from_numpy(ids), torch.from_numpy(mask))
        )
    got = path.ask(case, precision, outputs=["activations", "pooled", "norm_stats"], pooling="mean")
    real = mask != 0
    count = np.maximum(real.sum(1, keepdims=True), 1)
    yield from tolerances.vectors(
        "activations", _real(got["activations"], real, case), activations[real], precision
    )
    yield from tolerances.vectors(
        "pooled", np.array(got["pooled"]), activations.sum(1) / count, precision
    )
    stats = got["norm_stats"]
    served = _real(stats["mean"], real, case), _real(stats["rstd"], real, case)
    yield from tolerances.norms(served, (mean[real], rstd[real]), precision)
    if reference.head:
        yield from tolerances.vectors(
            "logits", *_logits(path, case, reference, precision, activations, real), precision
        )


def _logits(
    path: _Path, case: Case, reference: Transformer, precision: str, activations: Array, real: Array
) -> tuple[Array, Array]:
    """Served and reference logits over real tokens, or over the last of each row where all would be too many."""
    assert reference.head
    rows = activations[real]
    positions = _positions(case, path.model.bundle)
    got = path.ask(case, precision, outputs=["logits"], logits={"positions": positions})["logits"]
    if positions == "last":
        rows = rows[np.cumsum(real.sum(1))[real.any(1)] - 1]
    with torch.no_grad():
        expected = reference.head(torch.from_numpy(rows)).numpy()
    return _real(got, real, case) if positions == "all" else np.array(got)[real.any(1)], expected


def _positions(case: Case, bundle: Bundle) -> str:
    return (
        "all" if case.grid()[1].sum() * bundle.manifest.limits.vocab_size <= MAX_LOGITS else "last"
    )


def _real(answer: list[Any], real: Array, case: Case) -> Array:
    """The answer's rows over real tokens `[n, w]`; pads must be exact zeros."""
    if case.attention_mask is None:
        return np.concatenate([np.array(row) for row in answer])
    grid = np.array(answer)
    if grid[~real].any():
        raise CertificationError(f"{case.name}: a pad is not zero")
    return grid[real]


def _bare_graph(path: _Path, reference: Transformer, precision: str) -> Iterator[tolerances.Result]:
    """The graph as any other ONNX server would call it: the caller's cells, pads and all."""
    case = next(case for case in cases(path.model.bundle) if case.name == "pads holes")
    ids, mask = case.grid()
    with torch.no_grad():
        expected = reference(torch.from_numpy(ids), torch.from_numpy(mask))[0].numpy()
    got = path.model.engine(precision).run_grid(ids, mask)[0]
    flat = (-1, expected.shape[-1])
    yield from tolerances.vectors(
        "activations", got.reshape(flat), expected.reshape(flat), precision
    )


def _bare_bits(path: _Path, precision: str) -> Iterator[tolerances.Result]:
    engine, manifest = path.model.engine(precision), path.model.bundle.manifest
    paddings = PADDINGS[manifest.layout]
    unequal = list(selfcheck.unequal(engine, manifest.limits, paddings, BIT_LENGTHS))
    yield f"unequal ({', '.join(paddings)})", len(unequal), 0
    yield "not zero where all are pads", 0 if selfcheck.all_pad_is_zero(engine) else 1, 0


def _unequal_paddings(path: _Path, precision: str) -> Iterator[tolerances.Result]:
    """Requests whose answer, read at the real places, differs in a bit from the same rows sent ragged."""
    chosen = {case.name: case for case in cases(path.model.bundle)}
    plain = _rows(path, chosen["ragged"], precision)
    padded = [
        _rows(path, chosen[f"pads {where}"], precision) for where in ("right", "left", "holes")
    ]
    yield (
        "unequal rows",
        sum(row != same for rows in padded for row, same in zip(rows, plain, strict=True)),
        0,
    )


def _unequal_company(path: _Path, precision: str) -> Iterator[tolerances.Result]:
    ragged = next(case for case in cases(path.model.bundle) if case.name == "ragged")
    together = _rows(path, ragged, precision)
    alone = [_rows(path, Case("alone", [row]), precision)[0] for row in ragged.input_ids]
    yield "unequal rows", sum(row != same for row, same in zip(together, alone, strict=True)), 0


def _rows(path: _Path, case: Case, precision: str) -> list[Any]:
    """Every output of each row at its real places. Equal numbers are equal bits: floats print exactly."""
    bundle = path.model.bundle
    positions = _positions(case, bundle)
    options = {"logits": {"positions": positions}} if bundle.has_head else {}
    got = path.ask(case, precision, outputs=list(bundle.outputs), **options)
    grids, vectors = (
        [got["activations"], got["norm_stats"]["mean"], got["norm_stats"]["rstd"]],
        [got["pooled"]],
    )
    if bundle.has_head:
        (grids if positions == "all" else vectors).append(got["logits"])
    masks = case.attention_mask or [[1] * len(row) for row in case.input_ids]
    return [
        (
            [[cell for cell, real in zip(grid[i], mask, strict=True) if real] for grid in grids],
            [v[i] for v in vectors],
        )
        for i, mask in enumerate(masks)
    ]


def processor() -> str:
    """The processor's name and widest vectors: bits are a property of both."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    facts = {name.strip(): value.strip() for name, value in fields.items()}
    flags = facts.get("flags", "").split()
    widest = [flag for flag in ("avx2", "avx512f", "avx512_vnni", "amx_int8") if flag in flags]
    return " ".join([facts.get("model name", platform.machine()), *widest])
