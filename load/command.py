"""The commands `addnorm load run`, `load hold` and `load beside`."""

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

from addnorm.load import beside, capacity
from addnorm.load.options import NUM_DISTINCT, NUM_REQUESTS, load_parser
from addnorm.load.run import WRONG, Load, Reference, Result, compute_alone, measure
from addnorm.load.servers import CacheCounts, Server
from addnorm.load.stream import PROFILES, Stream, make, prose, unique, zipf
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.bundle import Bundle
from addnorm.service.errors import StartupError
from addnorm.service.loading.addresses import Address, find_version

MODEL = "if the server calls the model otherwise, write --url URL#NAME"


def load(words: Sequence[str]) -> None:
    """Measures servers. Exits with code 1 if an answer was wrong, or if it cannot begin."""
    options = load_parser().parse_args(words)
    measurements = {"run": _run_load, "hold": _hold, "beside": _compare}
    try:
        measurements[options.measurement](options)
    except (StartupError, ConnectionError) as error:
        raise SystemExit(f"addnorm load {options.measurement}: {error}") from None


def _hold(options: argparse.Namespace) -> None:
    """Prints whether the server holds the target. Exits with code 1 if no number of such machines
    was seen to."""
    url, model, precision = _server(options.server)
    server = _ours(url, options.api_key_env)
    try:
        limits = capacity.served_limits(server, model)
    except (OSError, ValueError) as error:
        raise StartupError(f"{url}: {error}") from None
    goal = capacity.Goal(
        options.texts, options.tokens, options.target, options.p99_ms / 1000, options.price_per_hour
    )
    subject = capacity.Subject(server, limits, goal, _fields(model, precision))
    measurement = capacity.measure(subject)
    print("\n".join(measurement.lines()))
    sys.exit(0 if measurement.is_held else 1)


def _compare(options: argparse.Namespace) -> None:
    texts = prose(256)
    if file := options.texts_file:
        try:
            texts = [text for text in file.read_text().splitlines() if text.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise StartupError(f"--texts-file {error}") from None
        if not texts:
            raise StartupError(f"--texts-file {file} has no texts")
    keys = [*options.api_key_env, None, None]
    first, second = (
        beside.Side(url, _fields(model, precision), _key(key))
        for (url, model, precision), key in zip(
            map(_server, (options.a, options.b)), keys, strict=False
        )
    )
    beside.compare(first, second, texts, options.texts, options.concurrency, options.seconds)


def _server(text: str) -> tuple[str, str | None, str | None]:
    """URL, model and precision. StartupError for another address."""
    address = Address.parse(text)
    if address.server is None:
        raise StartupError(f"{text} is not the address of a server: write http://HOST:PORT#NAME")
    return (*address.server, address.precision)


def _key(variable: str | None) -> tuple[str, ...]:
    """The header that has the key of this environment variable."""
    if not variable:
        return ()
    if not os.environ.get(variable):
        raise StartupError(f"--api-key-env: the environment variable {variable} is not set")
    return (f"Authorization: Bearer {os.environ[variable]}",)


def _fields(model: str | None, precision: str | None) -> dict[str, str]:
    """The fields of each body beside its sequences."""
    fields = {"model": model, "precision": precision}
    return {name: value for name, value in fields.items() if value}


def _must_be_writable(option: str, path: Path | None) -> None:
    """Leaves no file behind: the measurement may fail."""
    if path is None:
        return
    is_new = not os.path.lexists(path)
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666))
    except OSError as error:
        raise StartupError(f"{option} {path} cannot be written: {error.strerror}") from None
    if is_new:
        path.unlink()


def _run_load(options: argparse.Namespace) -> None:
    address = Address.parse(options.model)
    bundle = bundles.read(find_version(address, options.bundles, options.kept))
    url, name, _ = _server(options.url)
    _must_be_writable("--json", options.json)
    server = _ours(url, options.api_key_env, options.pid)
    fields = _fields(name or bundle.manifest.name, address.precision)
    try:
        stream = _stream(options, bundle, fields)
    except ValueError as error:
        options.refuse(str(error))
    precision = address.precision or bundle.manifest.default_precision
    reference = Reference(compute_alone(bundle, precision), options.tolerance, options.most_alone)
    if not stream.once:  # a stream that ends may be longer than what will be sent of it
        reference.learn(stream.requests, options.profile)
    load = Load(
        options.concurrency,
        options.seconds,
        options.rate,
        options.warm_up,
        None,
        options.seed,
        (f"Accept: {options.accept}",) if options.accept else (),
    )
    before = server.cache_counts()
    figures = measure(server, stream, reference, load)
    after = server.cache_counts()
    counts = after.since(before) if before and after else None
    entries = {**asdict(figures), "cache": asdict(counts) if counts else None}
    print(table(entries))
    if notice := None if stream.once else warning(counts, f"--profile {options.profile}"):
        print(notice, file=sys.stderr)
    if options.json:
        options.json.write_text(
            json.dumps({"load": asdict(load), "result": entries}, indent=2) + "\n"
        )
    if figures.num_errors:
        summary = f"{figures.num_errors} of {figures.num_answers} answers were wrong"
        cause = reason(server, stream, figures, bundle, load.headers)
        raise SystemExit(
            f"{summary}: {cause}" if figures.num_errors == figures.num_answers else summary
        )


def reason(
    server: Server, stream: Stream, figures: Result, bundle: Bundle, headers: Sequence[str] = ()
) -> str:
    """figures: of this stream, with errors. A rejection's words need one more request."""
    kinds = ", ".join(figures.errors)
    if WRONG in figures.errors:
        return f"{kinds}: the answers differ from the answers of {bundle.ref}; {MODEL}"
    message = ""
    try:
        if any(kind.isdigit() for kind in figures.errors):
            server.ask(stream.requests[0].body, stream.path, headers)
    except HTTPError as error:
        text = error.read().decode(errors="replace")
        try:
            message = str(json.loads(text)["error"]["message"])
        except (ValueError, LookupError, TypeError):  # another server's
            message = " ".join(text.split())[:200]
    except (OSError, HTTPException):
        pass
    return (
        f"{kinds}: {message}. The requests were generated for {bundle.ref}; {MODEL}"
        if message
        else kinds
    )


def _ours(url: str, key_variable: str | None, pid: int | None = None) -> Server:
    address = urlsplit(url)
    return Server(address.hostname or "127.0.0.1", address.port or 80, pid, _key(key_variable))


def _stream(options: argparse.Namespace, bundle: Bundle, fields: dict[str, str]) -> Stream:
    """ValueError if the options contradict each other, or the model allows no such stream."""
    profile, seed, limits = PROFILES[options.profile], options.seed, bundle.manifest.limits
    if tensors := bundle.manifest.as_it_is:
        if len(tensors) > 1:
            raise ValueError(
                f"{bundle.ref} answers with {len(tensors)} tensors, only models with one"
                " tensor can be compared"
            )
        head = tensors[0].name in bundle.manifest.heads or bundle.rows_are_tokens
        profile = replace(profile, output=tensors[0].name if head else tensors[0].output)
    if options.distinct is not None and options.zipf is None:
        raise ValueError("--distinct needs --zipf")
    if options.requests is not None and options.zipf is None and not options.unique:
        raise ValueError("--requests needs --zipf or --unique: other streams do not end")
    num_requests = options.requests or NUM_REQUESTS
    if options.unique:
        return unique(profile, limits, num_requests, seed, fields)
    if options.zipf is not None:
        num_distinct = options.distinct or NUM_DISTINCT
        return zipf(profile, limits, num_requests, options.zipf, num_distinct, seed, fields)
    return make(profile, limits, seed, fields)


def warning(counts: CacheCounts | None, option: str) -> str | None:
    """The message if a load that repeats its few requests measures the server's cache.

    option: repeats them.
    """
    advice = "Start it with ADDNORM_CACHE_BYTES=0 to measure the model, or send --unique or --zipf."
    if counts is None:
        return (
            f"{option} repeats its sequences. If the server has a cache, these figures measure "
            f"it; its metrics could not be read. {advice}"
        )
    if num_spared := counts.hits + counts.merged:
        return (
            f"{option} repeats its sequences. {num_spared:,} of them were not computed again: "
            f"these figures measure the server's cache. {advice}"
        )
    return None


def table(figures: Mapping[str, object]) -> str:
    """Markdown, a line per figure."""
    lines = ["| figure | value |", "|---|---|"]
    for name, value in figures.items():
        text = "-" if value is None else str(value)
        if isinstance(value, float):
            text = f"{value:,.3f}"
        if isinstance(value, dict):
            text = ", ".join(f"{name} {number}" for name, number in value.items()) or "-"
        lines.append(f"| {name} | {text} |")
    return "\n".join(lines)
