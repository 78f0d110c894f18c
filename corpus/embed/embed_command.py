"""The command `addnorm embed`."""

import argparse
import asyncio
import json
import math
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from addnorm.corpus.embed import embedding_job
from addnorm.corpus.embed.embedding_job import SAVE_EVERY_S, WINDOW_ROWS, Job, Progress
from addnorm.corpus.embed.parts import Parts
from addnorm.corpus.embedder import KINDS, Embedder, EmbedOptions, as_dict, open_service
from addnorm.corpus.errors import CorpusError
from addnorm.corpus.job_plan import Plan
from addnorm.corpus.options import embed_parser
from addnorm.corpus.storage import Location, in_one_line
from addnorm.corpus.stored_vectors import (
    NO_TEXT,
    ROW_TYPE,
    Digests,
    StoredVectors,
    check_complete,
    digest_column,
    digests_of,
    row_digests,
)
from addnorm.corpus.texts_source import Source
from addnorm.service.engine.batch import Ints
from addnorm.service.engine.device import memory
from addnorm.service.engine.fingerprint import METADATA_KEY, to_text
from addnorm.service.errors import StartupError
from addnorm.service.loading.addresses import Address, find_version
from addnorm.service.server.wiring import Service

LABELS_KEY = "addnorm.labels"
NOT_DONE, INTERRUPTED = 1, 130
NUM_PROBES = 64  # computed to find whether a file without metadata has the vectors of a model


def _confirm(question: str) -> bool:
    """True where nobody can be asked."""
    return not sys.stdin.isatty() or input(question).strip().lower() in ("y", "yes")


@dataclass(frozen=True)
class Means:
    """Classes and functions that a job is done with."""

    open_bundle: Callable[..., Service] = open_service
    parts: type[Parts] = Parts
    window_rows: int = WINDOW_ROWS
    save_every_s: float = SAVE_EVERY_S
    confirm: Callable[[str], bool] = _confirm
    free_bytes: Callable[[str], int] = lambda folder: shutil.disk_usage(folder).free


MEANS = Means()


def embed(arguments: Sequence[str], means: Means = MEANS) -> None:
    """Exits with one line and code 1 if OUT cannot be written."""
    options = embed_parser().parse_args(arguments)
    memory.bound_heaps()
    try:
        options.out, options.input = _out(options.out), Location.parse(options.input)
        options.earlier = Location.parse(options.earlier) if options.earlier else None
        _embed(options, means)
    except (CorpusError, StartupError) as error:
        print(f"addnorm embed: {error}", file=sys.stderr)
        sys.exit(NOT_DONE)
    except KeyboardInterrupt:
        print("addnorm embed: interrupted; run the same command to resume", file=sys.stderr)
        sys.exit(INTERRUPTED)


def _embed(options: argparse.Namespace, means: Means) -> None:
    source = _source(options)
    address = Address.parse(options.model)
    options.precision = address.precision
    embed_options = EmbedOptions(
        **{field.name: getattr(options, field.name) for field in fields(EmbedOptions)}
    )
    embedder = Embedder(
        find_version(address, options.bundles, options.kept),
        embed_options,
        means.open_bundle,
        worker_threads=options.worker_threads,
    )
    try:
        # every model has pooled vectors, also one that is made for something else
        model, tasks = embedder.model, embedder.model.bundle.tasks
        if model.tokenizer and KINDS[embed_options.output].task == "embed" and "embed" not in tasks:
            _tell(f"{model.bundle.ref} cannot embed, but can {', '.join(tasks)}: set --output")
        fingerprint = embedder.fingerprint
        metadata = {METADATA_KEY: to_text(fingerprint.parts or {}, fingerprint.bits)}
        if embedder.labels:
            metadata[LABELS_KEY] = ",".join(embedder.labels)
        policy = options.bad_rows
        plan: Plan = {
            "input": source.digests(),
            "options": as_dict(embedder.options),
            "columns": {"text": source.text_columns, "vector": options.vector_column},
            "rows": {} if policy == "refuse" else {"bad": policy},
            "fingerprint": fingerprint.record,
        }
        parts = means.parts(options.out, plan, metadata)
        reading = embedding_job.first_reading(source, embedder)
        if not options.dry_run and parts.is_done():
            check_complete(parts.out, options.vector_column, np.concatenate([*reading]))
            print(f"{options.out} is complete")
            return
        _run(options, source, embedder, parts, reading, means)
    finally:
        embedder.close()


def _run(
    options: argparse.Namespace,
    source: Source,
    embedder: Embedder,
    parts: Parts,
    reading: Iterator[Digests],
    means: Means,
) -> None:
    earlier, reason = StoredVectors.none(), ""
    type_ = asyncio.run(embedder.column_type())
    if options.earlier:
        earlier, reason = StoredVectors.of_job(options.earlier, parts.plan, type_)
    # of each row whether it is to be computed
    is_new = np.concatenate(
        [(earlier.find(digests) < 0) & (digests != NO_TEXT) for digests in reading]
    )
    if earlier.remark:
        _tell(
            f"{options.earlier} was made with {earlier.remark}: no bit of the known answers moved"
        )
    if reason:
        _tell(f"{options.earlier} {reason}: none of {len(is_new):,} rows can be reused")
    elif earlier.num_changed:
        _tell(
            f"{options.earlier} was changed by another program:"
            f" {earlier.num_changed:,} of its rows cannot be reused, the first is row"
            f" {earlier.first_changed}"
        )
    if options.dry_run:
        print("\n".join(_estimate(options, source, embedder, is_new, earlier)))
        return
    if reason and not options.yes and not means.confirm("compute them all? [y/N] "):
        raise CorpusError("nothing was computed")
    # the folder goes with the job, and the copy has room where the parts have
    folder = parts.folder.path if parts.folder.on_disk else None
    with parts.open(), earlier.open(folder):
        if not options.yes:
            _check_room(parts, len(is_new), type_, len(earlier), means)
        if earlier.path and not earlier.has_plan:
            asyncio.run(_check_model(earlier, source, embedder, np.flatnonzero(~is_new)))
        _write_bad_rows(options, source)
        saved = np.zeros(0, np.int64) if parts.saved is None else parts.saved.rows
        num_left = len(is_new) - parts.num_rows - len(saved)
        num_before = int(np.count_nonzero(is_new[: parts.num_rows])) + len(saved)
        num_new = int(np.count_nonzero(is_new))
        job = Job(
            source, embedder, parts, options.vector_column, earlier, type_,
            means.window_rows, means.save_every_s,
        )  # fmt: skip
        try:
            with closing(Progress(num_new, num_before)) as progress:
                asyncio.run(job.run(progress))
        except CorpusError:
            _check_unchanged(options, source, parts)  # what cannot be read may have changed
            raise
        _check_unchanged(options, source, parts)
        parts.join(len(is_new))
    print(
        f"{options.out}: {len(is_new):,} rows, {num_left:,} of them now, in"
        f" {progress.seconds:,.1f} s: {num_left / progress.seconds:,.1f} rows a second,"
        f" {progress.tokens_per_s:,.0f} tokens a second"
    )
    if earlier.path:
        print(_summary(options, source, is_new, earlier))


def _check_room(
    parts: Parts, num_rows: int, type_: pa.DataType, num_earlier: int, means: Means
) -> None:
    """CorpusError if the disk has no room for the vectors: the parts, OUT that is joined of them,
    and the copy of the earlier ones. Other columns, and what compression saves, are not known."""
    if not pa.types.is_fixed_size_list(type_):
        return
    row_bytes = type_.list_size * type_.value_type.bit_width // 8
    folder, num_copies = tempfile.gettempdir(), num_rows
    if parts.folder.on_disk:
        folder = parts.folder.path
        num_copies += num_rows - parts.num_rows + num_earlier
    needed, free = num_copies * (row_bytes + ROW_TYPE.byte_width), means.free_bytes(folder)
    if needed > free:
        raise CorpusError(
            f"{parts.out} needs about {needed / 1e6:,.1f} MB on the disk of {folder}, of which"
            f" {free / 1e6:,.1f} MB are free ({num_rows:,} rows of {row_bytes:,} bytes, as parts"
            " and as one file): make room, choose another OUT, or begin all the same with --yes"
        )


async def _check_model(
    earlier: StoredVectors, source: Source, embedder: Embedder, places: Ints
) -> None:
    """Computes a sample of the rows at these places. CorpusError if the earlier file has others:
    its metadata, which name the model, are lost."""
    sample_rows = np.sort(np.random.default_rng(0).permutation(places)[:NUM_PROBES])
    texts = [text for text in source.some_texts(sample_rows) if text is not None]
    digests = digests_of(texts)
    new_column = await embedder.compute_column(texts) if texts else pa.nulls(0)
    old_column = earlier.take(earlier.find(digests)) if texts else new_column
    new_digests, old_digests = (row_digests(digests, column) for column in (new_column, old_column))
    num_equal = pc.sum(pc.equal(new_digests, old_digests))
    if texts and num_equal.as_py() < len(texts):
        raise CorpusError(
            f"--from {earlier.path}: its metadata are lost, and of {len(texts)} vectors"
            f" {num_equal} have the bits that this model and these options give: leave out --from"
        )


def _write_bad_rows(options: argparse.Namespace, source: Source) -> None:
    """Lists the rows without a vector, and why, in a file beside OUT."""
    if not source.bad_rows:
        return
    path = replace(options.out, path=f"{options.out.path}.bad-rows.jsonl")
    lines = [
        json.dumps({"row": row, "problem": source.bad_rows[row]}) for row in sorted(source.bad_rows)
    ]
    with in_one_line(str(path)), path.write_whole() as partial:
        partial.write_text("".join(f"{line}\n" for line in lines))
    done = "left out" if options.bad_rows == "skip" else "without a vector"
    _tell(f"{len(lines):,} rows cannot be embedded and are {done}: {path} names them")


def _tell(notice: str) -> None:
    print(f"addnorm embed: {notice}", file=sys.stderr)


def _summary(
    options: argparse.Namespace, source: Source, is_new: NDArray[np.bool_], earlier: StoredVectors
) -> str:
    num_new = int(np.count_nonzero(is_new))
    num_without = len(source.bad_rows) if options.bad_rows == "null" else 0
    return (
        f"{len(is_new) - num_new - num_without:,} rows reused from {options.earlier}, {num_new:,}"
        f" computed, {earlier.num_gone:,} of its rows no longer in IN"
    )


def _estimate(
    options: argparse.Namespace,
    source: Source,
    embedder: Embedder,
    is_new: NDArray[np.bool_],
    earlier: StoredVectors,
) -> Iterator[str]:
    """The size of a job of which no part is written yet."""
    yield f"{options.out}: {len(is_new):,} rows"
    if earlier.path:
        yield _summary(options, source, is_new, earlier)
    rows = np.flatnonzero(is_new)
    if not len(rows):
        return
    tokens, rows_per_s = asyncio.run(embedding_job.speed(source, embedder, rows))
    seconds = len(rows) / rows_per_s
    yield (
        f"to compute: {len(rows):,} rows of about {tokens * len(rows):,.0f} tokens, about"
        f" {timedelta(seconds=math.ceil(seconds))} on this machine ({tokens * rows_per_s:,.0f}"
        " tokens a second)"
    )
    machines = math.ceil(seconds / 3600)
    yield f"within an hour: {machines} such machine{'s' if machines > 1 else ''}"
    if options.price_per_hour is not None:
        price = options.price_per_hour * seconds / 3600
        yield f"price: {price:,.4g}, at {options.price_per_hour:g} an hour"


def _check_unchanged(options: argparse.Namespace, source: Source, parts: Parts) -> None:
    """CorpusError if IN is no longer what the job began with."""
    if source.digests() != parts.plan["input"]:
        raise CorpusError(
            f"{options.input} changed while it was being read: remove {parts.folder} to start again"
        )


def _source(options: argparse.Namespace) -> Source:
    """CorpusError if IN or OUT do not fit."""
    if options.out.is_within(options.input):
        raise CorpusError(
            f"{options.out} lies in {options.input} and would be read as input: choose another OUT"
        )
    columns = [options.text_column, *filter(None, [options.second_text_column])]
    if options.second_text_column and options.output != "scores":
        raise CorpusError("--second-text-column needs --output scores")
    if options.second_text_column == options.text_column:
        raise CorpusError("--second-text-column and --text-column are the same column")
    source = Source(options.input, columns, options.bad_rows)
    for name in (options.vector_column, digest_column(options.vector_column)):
        if name in source.schema.names:
            raise CorpusError(
                f"{options.input} already has a column {name!r}: choose another with"
                " --vector-column"
            )
    return source


def _out(name: str) -> Location:
    """CorpusError if OUT cannot be written, as far as is known before anything is read."""
    path = name.partition("?")[0] if "://" in name else name
    if not path.endswith(".parquet"):
        raise CorpusError(f"{path}: OUT is a Parquet file: its name must end in .parquet")
    out = Location.parse(name)
    if out.on_disk and not (folder := Path(out.resolve().path).parent).is_dir():
        raise CorpusError(f"the folder {folder} does not exist")
    return out
