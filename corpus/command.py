"""The command `addnorm check`."""

import argparse
import asyncio
import json
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from pydantic import BaseModel, Field, PositiveInt, ValidationError

from addnorm.corpus import embeddings_client as client
from addnorm.corpus.embeddings_client import DTYPES, Embedded, Options
from addnorm.corpus.errors import CorpusError
from addnorm.corpus.index_check import Report, report
from addnorm.corpus.options import check_parser
from addnorm.corpus.parts import PLAN_KEY, plan_of
from addnorm.corpus.storage import Location
from addnorm.corpus.vectors_file import Sample, VectorsFile
from addnorm.service.engine.fingerprint import from_text
from addnorm.service.errors import StartupError
from addnorm.service.loading.addresses import Address, find_version

EQUAL, DIFFERENT, CANNOT_CHECK = 0, 1, 2


def check(arguments: Sequence[str]) -> None:
    """Exits with one of the codes above."""
    parser = check_parser()
    options = parser.parse_args(arguments)
    address = Address.parse(options.model)
    options.precision = address.precision
    if options.api_key_env and "://" not in address.name:
        parser.error("--api-key-env applies to a server only: give its URL with --model")
    try:
        check_report = asyncio.run(_check(options))
        code = DIFFERENT
        if check_report.verdict in ("bit-equal", options.accept):
            code = EQUAL
        print("\n".join(check_report.lines()))
        if options.json:
            values = vars(options)
            paths = {name: str(value) for name, value in values.items() if isinstance(value, Path)}
            written = {**check_report.as_json(), "exit_code": code, "options": {**values, **paths}}
            try:
                options.json.write_text(json.dumps(written, indent=2) + "\n")
            except OSError as error:
                raise CorpusError(f"--json {options.json}: {error.strerror}") from None
    except (CorpusError, StartupError) as error:
        _give_up(f"addnorm check: {error}")
    except Exception:  # Python's own exit code would say that the vectors differ
        _give_up(traceback.format_exc())
    sys.exit(code)


def _give_up(message: str) -> NoReturn:
    print(message, file=sys.stderr)
    sys.exit(CANNOT_CHECK)


async def _check(options: argparse.Namespace) -> Report:
    check_writable("--json", options.json)
    _complete(options)
    key = client.api_key(options.api_key_env) if options.api_key_env else None
    file = VectorsFile(Location.parse(options.vectors), options.text_column, options.vector_column)
    fingerprint, stored = options.fingerprint, None
    try:  # of the stored vectors: the one given, or the file's own
        if (text := file.fingerprint if fingerprint is None else fingerprint) is not None:
            stored = from_text(text)
    except ValueError as error:
        source = f"{file.path}: its metadata" if fingerprint is None else "--fingerprint"
        raise CorpusError(f"{source}: {error}") from None
    sample = file.draw_sample(options.sample, options.seed)
    print(
        f"{file.path}: {len(sample.rows):,} of {file.num_rows:,} rows,"
        f" {sample.vectors.shape[1]:,} numbers of {sample.vectors.dtype} each"
    )
    return report(sample, await _embed(options, sample, key), stored)


def check_writable(option: str, path: Path | None) -> None:
    """CorpusError before the work whose result is to be written there."""
    if path is None:
        return
    try:
        if path.is_dir():
            raise CorpusError(f"{option} {path} is a folder: give a file")
        if not path.parent.is_dir():
            raise CorpusError(f"{option} {path}: the folder {path.parent} does not exist")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise CorpusError(f"{option} {path} cannot be written by user {os.geteuid()}")
    except OSError as error:
        raise CorpusError(f"{option} {path}: {error.strerror}") from None


class Job(BaseModel):
    """The part of a job of `addnorm embed` that a check needs."""

    output: str = "pooled"
    precision: str | None = None
    prompt_name: str | None = None
    dimensions: PositiveInt | None = None
    text: list[str] = Field(["text"], min_length=1)  # columns
    vector: str = "vector"


def _complete(options: argparse.Namespace) -> None:
    """Options that are not given are those that `addnorm embed` had, if it made the file."""
    plan = plan_of(Location.parse(options.vectors)) or {}
    try:
        job = Job.model_validate({**plan.get("options", {}), **plan.get("columns", {})})
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        problem = f"{first['loc'][0]}: {first['msg']}"
        raise CorpusError(f"{options.vectors}: its metadata {PLAN_KEY}: {problem}") from None
    if job.output != "pooled":
        raise CorpusError(
            f"{options.vectors} has the output {job.output}: only the output pooled can be checked"
        )
    options.text_column = options.text_column or job.text[0]
    options.vector_column = options.vector_column or job.vector
    for name in ("precision", "prompt_name", "dimensions"):
        if getattr(options, name) is None:
            setattr(options, name, getattr(job, name))


async def _embed(options: argparse.Namespace, sample: Sample, key: str | None) -> Embedded:
    address = Address.parse(options.model)
    url, model = address.server or ("", None)
    bundle = None if url else find_version(address, options.bundles, options.kept)
    dtype = sample.vectors.dtype.name
    request_options = Options(
        model,
        options.precision,
        options.prompt_name,
        options.dimensions,
        dtype if dtype in DTYPES else "float32",
    )
    async with client.in_process(bundle) if bundle else client.server(url, key) as asking:
        return await client.embed(asking, sample.texts, sample.rows.tolist(), request_options)
