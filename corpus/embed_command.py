"""The command `addnorm embed`."""

import argparse
import asyncio
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from datetime import timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from addnorm.corpus import embedding_job
from addnorm.corpus.embedder import KINDS, Embedder, EmbedOptions, as_dict, open_service
from addnorm.corpus.embedding_job import WINDOW_ROWS, Progress
from addnorm.corpus.errors import CorpusError
from addnorm.corpus.options import embed_parser
from addnorm.corpus.parts import Parts, Plan
from addnorm.corpus.storage import Location
from addnorm.corpus.stored_vectors import (
    StoredVectors,
    check_complete,
    digest_column,
    digests_of,
)
from addnorm.corpus.texts_source import Source
from addnorm.service.engine.device import memory
from addnorm.service.engine.fingerprint import METADATA_KEY, to_text
from addnorm.service.engine.tokenizer import Text
from addnorm.service.errors import StartupError
from addnorm.service.loading.addresses import Address, find_version
from addnorm.service.server.wiring import Service

LABELS_KEY = "addnorm.labels"
NOT_DONE, INTERRUPTED = 1, 130


def _confirm(question: str) -> bool:
    """True where nobody can be asked."""
    return not sys.stdin.isatty() or input(question).strip().lower() in ("y", "yes")


@dataclass(frozen=True)
class Means:
    """Classes and functions that a job is done with."""

    open_bundle: Callable[..., Service] = open_service
    parts: type[Parts] = Parts
    window_rows: int = WINDOW_ROWS
    confirm: Callable[[str], bool] = _confirm


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
    bundle = find_version(address, options.bundles, options.kept)
    embedder = Embedder(
        bundle, embed_options, means.open_bundle, worker_threads=options.worker_threads
    )
    try:
        # every model has pooled vectors, also one that is made for something else
        model, tasks = embedder.model, embedder.model.bundle.tasks
        if model.tokenizer and KINDS[embed_options.output].task == "embed" and "embed" not in tasks:
            print(
                f"addnorm embed: {model.bundle.ref} cannot embed, but can {', '.join(tasks)}: set"
                " --output",
                file=sys.stderr,
            )
        metadata = {METADATA_KEY: to_text(embedder.fingerprint)}
        if embedder.labels:
            metadata[LABELS_KEY] = ",".join(embedder.labels)
        plan: Plan = {
            "input": source.digests(),
            "options": as_dict(embedder.options),
            "columns": {"text": source.text_columns, "vector": options.vector_column},
            "fingerprint": embedder.fingerprint,
        }
        parts = means.parts(options.out, plan, metadata)
        if not options.dry_run and parts.is_done():
            check_complete(parts.out, options.vector_column, source.checked_texts())
            print(f"{options.out} is complete")
            return
        earlier, reason = StoredVectors.none(), ""
        if options.earlier:
            sample = next(source.checked_texts())[:1]  # which tells the type of the column
            type_ = asyncio.run(embedder.compute_column(sample)).type
            earlier, reason = StoredVectors.of_job(options.earlier, plan, type_)
        is_new = np.concatenate([_is_new(texts, earlier) for texts in source.checked_texts()])
        if reason:
            notice = f"{options.earlier} {reason}: none of {len(is_new):,} rows can be reused"
            print(f"addnorm embed: {notice}", file=sys.stderr)
        elif earlier.num_changed:
            print(
                f"addnorm embed: {options.earlier} was changed by another program:"
                f" {earlier.num_changed:,} of its rows cannot be reused, the first is row"
                f" {earlier.first_changed}",
                file=sys.stderr,
            )
        if options.dry_run:
            print("\n".join(_estimate(options, source, embedder, is_new, earlier)))
            return
        if reason and not options.yes and not means.confirm("compute them all? [y/N] "):
            raise CorpusError("nothing was computed")
        _run(options, source, embedder, parts, is_new, earlier, means)
    finally:
        embedder.close()


def _is_new(texts: Sequence[Text], earlier: StoredVectors) -> NDArray[np.bool_]:
    """`[n]`: which texts an earlier job does not have."""
    if earlier.path is None:
        return np.ones(len(texts), np.bool_)
    return earlier.find(digests_of(texts)) < 0


def _run(
    options: argparse.Namespace,
    source: Source,
    embedder: Embedder,
    parts: Parts,
    is_new: NDArray[np.bool_],
    earlier: StoredVectors,
    means: Means,
) -> None:
    """is_new: `[rows]`, those that the earlier job does not have."""
    num_rows = len(is_new)
    # the folder goes with the job, and the copy has room where the parts have
    folder = parts.folder.path if parts.folder.on_disk else None
    with parts.open(), earlier.open(folder):
        num_left, column = num_rows - parts.num_rows, options.vector_column
        num_before = int(np.count_nonzero(is_new[: parts.num_rows]))
        num_new = int(np.count_nonzero(is_new))
        try:
            with closing(Progress(num_new, num_before)) as progress:
                asyncio.run(
                    embedding_job.run(
                        source, embedder, parts, column, progress, earlier, means.window_rows
                    )
                )
        except CorpusError:
            _check_unchanged(options, source, parts)  # what cannot be read may have changed
            raise
        _check_unchanged(options, source, parts)
        parts.join(num_rows)
    print(
        f"{options.out}: {num_rows:,} rows, {num_left:,} of them now: {progress.num_tokens:,}"
        f" tokens, {progress.tokens_per_s:,.0f} a second"
    )
    if earlier.path:
        print(_summary(options, is_new, earlier))


def _summary(options: argparse.Namespace, is_new: NDArray[np.bool_], earlier: StoredVectors) -> str:
    num_new = int(np.count_nonzero(is_new))
    return (
        f"{len(is_new) - num_new:,} rows reused from {options.earlier}, {num_new:,} computed,"
        f" {earlier.num_gone:,} of its rows no longer in IN"
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
        yield _summary(options, is_new, earlier)
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
    source = Source(options.input, columns)
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
