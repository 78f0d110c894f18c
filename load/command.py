"""`addnorm load --url URL --bundle BUNDLE`: loads a server, checks every answer, prints a table."""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit

from addnorm.load import beside, capacity, options
from addnorm.load.measure import pool
from addnorm.load.measure.check import WRONG, Reference, compute_alone
from addnorm.load.measure.prose import prose
from addnorm.load.measure.run import Load, Result, measure
from addnorm.load.measure.stream import PROFILES, Stream, make
from addnorm.load.servers import CacheCounts, Server
from addnorm.service.errors import StartupError
from addnorm.service.runtime import bundle as bundles
from addnorm.service.runtime.bundle import Bundle
from addnorm.service.runtime.manifest import Limits

MODEL = "--model names the model to ask, where a server has several"


def load(words: Sequence[str]) -> None:
    """Loads a server. Exits with code 1 if an answer was wrong, or if it cannot begin."""
    parser = options.parser()
    arguments = parser.parse_args(words)
    given = options.names_given(parser, words)
    if arguments.target is not None and arguments.beside is not None:
        parser.error("--target and --beside are two measurements: give one of them")
    others = [*options.OF_ONE_LOAD, "json", "bundle", "accept"]
    if arguments.target is None:
        _refuse_options(parser, given, options.OF_A_TARGET, "of --target")
    if arguments.beside is None:
        _refuse_options(parser, given, options.OF_A_COMPARISON, "of --beside")
    if arguments.target is not None:
        _refuse_options(parser, given, others, "not of --target")
        _hold(arguments)
        return
    if arguments.beside is not None:
        others = [name for name in others if name not in ("concurrency", "seconds")]
        _refuse_options(parser, given, others, "not of --beside")
        _compare(arguments)
        return
    _refuse_options(parser, given, ("texts",), "of --target and --beside")
    if arguments.bundle is None:
        parser.error("--bundle, --target or --beside is needed")
    try:
        bundle = bundles.read(arguments.bundle)
    except StartupError as error:
        raise SystemExit(f"addnorm load: {error}") from None
    known, asked = bundle.manifest.precisions, arguments.precision
    if asked and asked not in known:
        raise SystemExit(f"addnorm load: {bundle.ref} has {', '.join(known)}, not {asked}")
    _must_be_writable("--json", arguments.json)
    _run_load(parser, arguments, bundle)


def _hold(arguments: argparse.Namespace) -> None:
    """Prints whether the server holds the target. Exits with code 1 if no number of such machines
    was seen to."""
    server, fields = _ours(arguments), _fields(arguments)
    try:
        limits = capacity.served_limits(server, arguments.model)
    except (OSError, ValueError) as error:
        raise SystemExit(f"addnorm load: {arguments.url}: {error}") from None
    p99_s = arguments.p99_ms / 1000
    goal = capacity.Goal(arguments.texts, arguments.tokens, arguments.target, p99_s)
    found = capacity.measure(capacity.Subject(server, limits, goal, fields))
    print("\n".join(found.lines()))
    sys.exit(0 if found.is_held else 1)


def _compare(arguments: argparse.Namespace) -> None:
    texts = prose(256)
    if arguments.texts_file:
        try:
            texts = arguments.texts_file.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise SystemExit(f"addnorm load: --texts-file {error}") from None
        if not (texts := [text for text in texts if text.strip()]):
            raise SystemExit(f"addnorm load: --texts-file {arguments.texts_file} has no texts")
    their_model = arguments.beside_model or arguments.model
    ours = beside.Side(arguments.url, arguments.model, _key("--api-key-env", arguments.api_key_env))
    theirs = beside.Side(
        arguments.beside, their_model, _key("--beside-key-env", arguments.beside_key_env)
    )
    try:
        beside.compare(
            ours, theirs, texts, arguments.texts, arguments.concurrency, arguments.seconds
        )
    except ConnectionError as error:
        raise SystemExit(f"addnorm load: {error}") from None


def _key(option: str, variable: str | None) -> dict[str, str]:
    """The header that has the key of this environment variable."""
    if not variable:
        return {}
    if not os.environ.get(variable):
        raise SystemExit(f"addnorm load: {option}: the environment variable {variable} is not set")
    return {"Authorization": f"Bearer {os.environ[variable]}"}


def _fields(arguments: argparse.Namespace) -> dict[str, str]:
    """The fields of each body beside its sequences."""
    return {name: value for name in ("model", "precision") if (value := getattr(arguments, name))}


def _must_be_writable(option: str, path: Path | None) -> None:
    """Leaves no file behind: the measurement may fail."""
    if path is None:
        return
    is_new = not os.path.lexists(path)
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666))
    except OSError as error:
        why = f"{option} {path} cannot be written: {error.strerror}"
        raise SystemExit(f"addnorm load: {why}") from None
    if is_new:
        path.unlink()


def _run_load(
    parser: argparse.ArgumentParser, arguments: argparse.Namespace, bundle: Bundle
) -> None:
    precision = arguments.precision or bundle.manifest.default_precision
    try:
        stream = _stream(arguments, bundle.manifest.limits)
    except ValueError as error:
        parser.error(str(error))
    reference = Reference(
        compute_alone(bundle, precision), arguments.tolerance, arguments.most_alone
    )
    if not stream.once:  # a stream that ends may be longer than what will be sent of it
        reference.learn(stream.requests, arguments.profile)
    server = _ours(arguments)
    load = Load(
        arguments.concurrency,
        arguments.seconds,
        arguments.rate,
        arguments.warm_up,
        None,
        arguments.seed,
        (f"Accept: {arguments.accept}",) if arguments.accept else (),
    )
    before = server.cache_counts()
    result = measure(server, stream, reference, load)
    after = server.cache_counts()
    counts = after.since(before) if before and after else None
    seen = {**asdict(result), "cache": asdict(counts) if counts else None}
    print(table(seen))
    if said := None if stream.once else warning(counts, f"--profile {arguments.profile}"):
        print(said, file=sys.stderr)
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"load": asdict(load), "result": seen}, indent=2) + "\n"
        )
    if result.num_errors:
        said = f"{result.num_errors} of {result.num_answers} answers were not right"
        why = reason(server, stream, result, bundle, load.headers)
        raise SystemExit(f"{said}: {why}" if result.num_errors == result.num_answers else said)


def reason(
    server: Server, stream: Stream, result: Result, bundle: Bundle, headers: Sequence[str] = ()
) -> str:
    """result: of this stream, with errors. A rejection's words need one more request."""
    kinds = ", ".join(result.errors)
    if WRONG in result.errors:
        return f"{kinds}: the answers are not those of {bundle.ref}, which --bundle gives; {MODEL}"
    said = ""
    try:
        if any(kind.isdigit() for kind in result.errors):
            server.ask(stream.requests[0].body, stream.path, headers)
    except HTTPError as error:
        text = error.read().decode(errors="replace")
        try:
            said = str(json.loads(text)["error"]["message"])
        except (ValueError, LookupError, TypeError):  # another server's
            said = " ".join(text.split())[:200]
    except (OSError, HTTPException):
        pass
    return f"{kinds}: {said}. The requests are made for {bundle.ref}; {MODEL}" if said else kinds


def _ours(arguments: argparse.Namespace) -> Server:
    address = urlsplit(arguments.url)
    server = Server(address.hostname or "127.0.0.1", address.port or 80)
    key = _key("--api-key-env", arguments.api_key_env)
    headers = tuple(f"{name}: {value}" for name, value in key.items())
    return replace(server, pid=arguments.pid, headers=headers)


def _refuse_options(
    parser: argparse.ArgumentParser, given: set[str], names: Sequence[str], why: str
) -> None:
    """Exits with code 2 if one of these was given, also with its default."""
    for name in names:
        if name in given:
            parser.error(f"--{name.replace('_', '-')} is {why}")


def _stream(arguments: argparse.Namespace, limits: Limits) -> Stream:
    """ValueError if the options contradict each other, or the limits allow no such stream."""
    profile, seed = PROFILES[arguments.profile], arguments.seed
    fields = _fields(arguments)
    if arguments.unique and arguments.zipf is not None:
        raise ValueError("--unique repeats no sequence, --zipf does: give one of them")
    if arguments.distinct is not None and arguments.zipf is None:
        raise ValueError("--distinct is of --zipf")
    if arguments.requests is not None and arguments.zipf is None and not arguments.unique:
        raise ValueError("--requests is of --zipf and --unique: other streams do not end")
    num_requests = options.NUM_REQUESTS if arguments.requests is None else arguments.requests
    if arguments.unique:
        return pool.unique(profile, limits, num_requests, seed, fields)
    if arguments.zipf is not None:
        num_distinct = options.NUM_DISTINCT if arguments.distinct is None else arguments.distinct
        return pool.zipf(profile, limits, num_requests, arguments.zipf, num_distinct, seed, fields)
    return make(profile, limits, seed, fields)


def warning(counts: CacheCounts | None, what: str) -> str | None:
    """That a load which repeats its few requests measures the server's cache, if it does.

    what: repeats them.
    """
    advice = "Start it with ADDNORM_CACHE_BYTES=0 to measure the model, or send --unique or --zipf."
    if counts is None:
        return (
            f"{what} repeats its sequences. If the server has a cache, these figures measure "
            f"it; its metrics could not be read. {advice}"
        )
    if num_spared := counts.hits + counts.merged:
        return (
            f"{what} repeats its sequences. {num_spared:,} of them were not computed again: "
            f"these figures measure the server's cache. {advice}"
        )
    return None


def table(figures: Mapping[str, object]) -> str:
    """Markdown, a line per figure."""
    lines = ["| figure | value |", "|---|---|"]
    return "\n".join([*lines, *(f"| {name} | {_show(value)} |" for name, value in figures.items())])


def _show(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.3f}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {number}" for name, number in value.items()) or "-"
    return "-" if value is None else str(value)
