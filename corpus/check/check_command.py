"""The commands `addnorm check` and `addnorm pin`."""

import argparse
import asyncio
import json
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import httpx
from pydantic import BaseModel, Field, PositiveInt, ValidationError

from addnorm.corpus import embeddings_client as client
from addnorm.corpus.check.index_check import Report, report
from addnorm.corpus.embeddings_client import DTYPES, Embedded, Options
from addnorm.corpus.errors import CorpusError
from addnorm.corpus.fingerprint_differences import Fingerprints
from addnorm.corpus.job_plan import PLAN_KEY, plan_of
from addnorm.corpus.options import check_parser, pin_parser
from addnorm.corpus.storage import Location, check_writable, in_one_line
from addnorm.corpus.vectors_file import Sample, VectorsFile
from addnorm.service.engine.fingerprint import Recorded, from_text, to_text
from addnorm.service.errors import StartupError
from addnorm.service.loading.addresses import Address, find_version
from addnorm.service.options import Parser

EQUAL, DIFFERENT, CANNOT_CHECK = 0, 1, 2


def check(arguments: Sequence[str]) -> None:
    """Exits with one of the codes above."""
    parser = check_parser()
    options = parser.parse_args(arguments)
    _read_model(parser, options)
    if (options.vectors is None) == (options.pin is None):
        parser.error("give a file of vectors, or --pin FILE")
    if options.pin:
        sys.exit(_exit_code("check", lambda: asyncio.run(_check_pin(options))))
    sys.exit(_exit_code("check", lambda: _check_vectors(options)))


def pin(arguments: Sequence[str]) -> None:
    """Writes the bits of known answers. Exits with code 2 if there are none."""
    parser = pin_parser()
    options = parser.parse_args(arguments)
    _read_model(parser, options)
    sys.exit(_exit_code("pin", lambda: asyncio.run(_write_pin(options))))


def _exit_code(command: str, run: Callable[[], int]) -> int:
    try:
        return run()
    except (CorpusError, StartupError) as error:
        print(f"addnorm {command}: {error}", file=sys.stderr)
    except Exception:  # Python's own exit code would say that the vectors differ
        traceback.print_exc()
    return CANNOT_CHECK


async def _records(options: argparse.Namespace) -> tuple[str, dict[str, Recorded]]:
    """The model's name, and its fingerprint in each precision whose bits are promised."""
    async with _target(options) as asking:
        entry = await client.show_model(asking, _name(options) or await client.only_model(asking))
    records = {name: part for name, part in client.fingerprints(entry).items() if part.bits}
    if not records:
        raise CorpusError(
            f"{entry['id']} has no bits to compare: it runs on a GPU, or its certificate records"
            " none (`addnorm verify` records them), or the server is of an earlier version"
        )
    return entry["id"], records


async def _write_pin(options: argparse.Namespace) -> int:
    check_writable("FILE", options.file)
    model, records = await _records(options)
    pins = {
        name: json.loads(to_text(record.parts or {}, record.bits))
        for name, record in records.items()
    }
    with in_one_line(str(options.file)):
        options.file.write_text(json.dumps({"model": model, "precisions": pins}, indent=2) + "\n")
    print(f"{options.file}: the bits of {model} in {', '.join(pins)}")
    return EQUAL


async def _check_pin(options: argparse.Namespace) -> int:
    try:
        pins = json.loads(options.pin.read_text())["precisions"]
        pinned_records = {name: from_text(json.dumps(pin)) for name, pin in pins.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorpusError(f"--pin {options.pin} is no file of `addnorm pin`: {error}") from None
    model, served_records = await _records(options)
    code = EQUAL
    for precision, record in pinned_records.items():
        both = Fingerprints(record, served_records.get(precision))
        code = code if both.has_equal_bits else DIFFERENT
        differences = ", ".join(map(str, both.differences)) or "the parts are the same"
        if precision not in served_records:
            differences = f"it has {', '.join(served_records)}"
        outcome = "no bit" if both.has_equal_bits else "bits"
        print(f"{model} {precision}: {outcome} moved; {differences}")
    return code


def _check_vectors(options: argparse.Namespace) -> int:
    check_report = asyncio.run(_check(options))
    code = EQUAL if check_report.verdict in ("bit-equal", options.accept) else DIFFERENT
    print("\n".join(check_report.lines()))
    if options.json:
        values = vars(options)
        paths = {name: str(value) for name, value in values.items() if isinstance(value, Path)}
        fields = {**check_report.as_json(), "exit_code": code, "options": {**values, **paths}}
        with in_one_line(f"--json {options.json}"):
            options.json.write_text(json.dumps(fields, indent=2) + "\n")
    return code


async def _check(options: argparse.Namespace) -> Report:
    check_writable("--json", options.json)
    job = _complete(options)
    if options.api_key_env:
        client.api_key(options.api_key_env)  # before anything is read
    file = VectorsFile(Location.parse(options.vectors), options.text_column, options.vector_column)
    fingerprint, stored = options.fingerprint, None
    try:  # of the stored vectors: the one given, or the file's own
        if (text := file.fingerprint if fingerprint is None else fingerprint) is not None:
            stored = from_text(text)
    except ValueError as error:
        source = f"{file.path}: its metadata" if fingerprint is None else "--fingerprint"
        raise CorpusError(f"{source}: {error}") from None
    sample = file.draw_sample(options.sample, options.seed, job.bad == "null")
    print(
        f"{file.path}: {len(sample.rows):,} of {file.num_rows:,} rows,"
        f" {sample.vectors.shape[1]:,} numbers of {sample.vectors.dtype} each"
    )
    return report(sample, await _embed(options, sample), stored)


class Job(BaseModel):
    """The part of a job of `addnorm embed` that a check needs."""

    output: str = "pooled"
    precision: str | None = None
    prompt_name: str | None = None
    dimensions: PositiveInt | None = None
    text: list[str] = Field(["text"], min_length=1)  # columns
    vector: str = "vector"
    bad: str = ""  # rows


def _complete(options: argparse.Namespace) -> Job:
    """The job of `addnorm embed`, if it made the file. Options that are not given are the job's."""
    plan = plan_of(Location.parse(options.vectors)) or {}
    try:
        groups = (plan.get(group, {}) for group in ("options", "columns", "rows"))
        job = Job.model_validate({key: value for group in groups for key, value in group.items()})
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
    return job


async def _embed(options: argparse.Namespace, sample: Sample) -> Embedded:
    dtype = sample.vectors.dtype.name
    request_options = Options(
        _name(options),
        options.precision,
        options.prompt_name,
        options.dimensions,
        dtype if dtype in DTYPES else "float32",
    )
    async with _target(options) as asking:
        return await client.embed(asking, sample.texts, sample.rows.tolist(), request_options)


def _read_model(parser: Parser, options: argparse.Namespace) -> None:
    address = Address.parse(options.model)
    options.precision = address.precision
    if options.api_key_env and "://" not in address.name:
        parser.error("--api-key-env applies to a server only: give its URL with --model")


def _name(options: argparse.Namespace) -> str | None:
    """The name of a server's model."""
    server = Address.parse(options.model).server
    return server[1] if server else None


def _target(options: argparse.Namespace) -> AbstractAsyncContextManager[httpx.AsyncClient]:
    """The server or the bundle that is asked."""
    address = Address.parse(options.model)
    if address.server is None:
        return client.in_process(find_version(address, options.bundles, options.kept))
    key = client.api_key(options.api_key_env) if options.api_key_env else None
    return client.server(address.server[0], key)
