"""The worst requests within the limits, a row for each kind: cheap to send, expensive to answer.

Names state sizes for the `minilm` shape; bodies follow the limits of the bundle that is served.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from addnorm.service.runtime.manifest import Manifest
from benchmarks.stress.caller import Request
from benchmarks.stress.requests import texts
from benchmarks.stress.requests.bodies import (
    DIGITS,
    EMBEDDINGS,
    INFER,
    TOKENIZE,
    V2,
    all_likeliest,
    embeddings,
    floats,
    hopeless,
    integers,
    likeliest_of_pads,
    logits,
    long_integers,
    longest,
    many_lengths,
    many_tensors,
    names,
    nested,
    of_texts,
    packed,
    padding,
    pads,
    quick,
    ragged,
    random_letters,
    raw,
    slow_count,
    small_chunks,
    spaces,
    string,
    tensor_pads,
    unknown_keys,
    v2_cells,
    v2_inputs,
    v2_numbers,
    v2_rows,
    v2_wrong_mask,
    wrong_mask,
)

LOAD, UNLOAD = "/v2/repository/models/{model}/load", "/v2/repository/models/{model}/unload"
Make = Callable[[Manifest], Sequence[Request]]


@dataclass(frozen=True)
class Case:
    """Requests of one kind, sent in turn."""

    name: str
    route: str
    make: Make
    many: bool = False  # asked of a server of a hundred models
    connections: int = 2
    has_texts: bool = False  # needs a vocabulary of letters


def case(name: str, route: str, make: Callable[[Manifest], Request], **how: Any) -> Case:
    """A case that sends one request again and again."""
    return Case(name, route, lambda manifest: [make(manifest)], **how)


def texts_of(path: str) -> list[Case]:
    kinds: dict[str, Callable[[Manifest], list[str]]] = {
        "900 texts of words in no vocabulary": lambda manifest: hopeless(900),
        "texts of one endless word": lambda manifest: longest(manifest, texts.run_on),
        "texts of accents": lambda manifest: longest(manifest, texts.accents),
    }
    tokens = partial(of_texts, path, lambda manifest: ["q " * 60] * 1024)
    return [
        *(
            case(name, path, partial(of_texts, path, make), has_texts=True)
            for name, make in kinds.items()
        ),
        # a second one's tokens would not fit the queue
        case("65,000 tokens of one letter", path, tokens, has_texts=True, connections=1),
    ]


def get(path: str, **headers: str) -> Callable[[Manifest], Request]:
    return lambda manifest: Request(path.format(model=manifest.name), None, headers)


def index(manifest: Manifest) -> Request:
    return raw("/v2/repository/index", b"{}")


def unload_and_load(manifest: Manifest) -> list[Request]:
    return [raw(path.format(model=manifest.name), b"") for path in (UNLOAD, LOAD)]


def width(manifest: Manifest) -> int:
    return manifest.limits.vocab_size


READ = (
    "/metrics",
    "/v1/models",
    "/v1/models/{model}",
    "/v1/models/{model}/certificate",
    "/openapi.json",
    "/readyz",
)
READ_V2 = ("/v2", "/v2/models/stats", "/v2/models/{model}/config", "/v2/health/ready")
PAGES = ("/docs", "/swagger/swagger-ui-bundle.js", "/", "/page/page.css")
E = rb"\u0041"

CASES = [
    case("plain: 16 sequences of 16 tokens", INFER, lambda m: ragged(m, ["pooled"], 256, 16)),
    case("3,900 integers of 4,299 digits, gzip", INFER, partial(long_integers, DIGITS)),
    case("260,000 integers of 60 digits, gzip", INFER, partial(long_integers, 60)),
    case("262,144 cells, one token", INFER, lambda m: padding(m, ["pooled"])),
    case("8 MiB of spaces, gzip", INFER, spaces),
    case("8 MiB of escapes for the model's name, gzip", INFER, lambda m: string("model", E)),
    case("8 MiB of backslashes and 2,000 colons, gzip", INFER, slow_count),
    case(
        "8 MiB of a string for ids, gzip",
        INFER,
        lambda m: string("input_ids", E, rest=b'"model":"x"'),
    ),
    case("8 MiB of random letters, gzip", INFER, random_letters),
    case("990 unknown keys of 8 kB", INFER, partial(unknown_keys, INFER)),
    case("lists 2,000 deep", INFER, partial(nested, INFER, "input_ids")),
    case(
        "524,288 names of outputs, gzip",
        INFER,
        partial(names, INFER, "outputs", "pooled", rest=b'"input_ids":[[1]],'),
    ),
    case("524,288 texts of a letter, gzip", INFER, partial(names, INFER, "texts", "q")),
    case("a million chunks of a byte", INFER, small_chunks),
    case(
        "50,000 tokens of activations",
        INFER,
        lambda m: quick(m, "activations", 50_000, 49),
        connections=1,
    ),
    case(
        "activations of 174,000 pads", INFER, lambda m: padding(m, ["activations"], pads(m.d_model))
    ),
    case(
        "activations of 174,000 pads, gzip",
        INFER,
        lambda m: padding(m, ["activations"], pads(m.d_model)).having(accept_encoding="gzip"),
    ),
    case(
        "activations of 174,000 pads, float16",
        INFER,
        lambda m: padding(m, ["activations"], pads(m.d_model), dtype="float16"),
    ),
    case("600 tokens of logits", INFER, logits),
    case("600 tokens of logits, gzip", INFER, lambda m: logits(m).having(accept_encoding="gzip")),
    case("logits of 2,200 pads", INFER, lambda m: padding(m, ["logits"], pads(width(m)))),
    case("top_k of the whole vocabulary", INFER, all_likeliest),
    case("top_k 1 of 262,144 pads", INFER, likeliest_of_pads),
    case("norm_stats of 262,144 pads", INFER, lambda m: padding(m, ["norm_stats"])),
    case(
        "norm_stats of 32,768 tokens",
        INFER,
        lambda m: quick(m, "norm_stats", 32_768, 64),
        connections=1,
    ),
    *texts_of(INFER),
    case("safetensors: a header of 1,100 tensors", INFER, many_tensors),
    case("safetensors: 3,300,000 cells, a wrong mask", INFER, wrong_mask),
    case("safetensors: 4,000,000 lengths", INFER, many_lengths),
    case("safetensors: activations of 174,000 pads", INFER, tensor_pads),
    case("1,024 sequences, floats", EMBEDDINGS, lambda m: embeddings(m, encoding_format="float")),
    case("1,024 sequences, base64", EMBEDDINGS, lambda m: embeddings(m, encoding_format="base64")),
    case(
        "3,900 integers of 4,299 digits, gzip",
        EMBEDDINGS,
        lambda m: packed(raw(EMBEDDINGS, b'{"input":[%s]}' % integers(DIGITS)[0])),
    ),
    case("524,288 texts of a letter, gzip", EMBEDDINGS, partial(names, EMBEDDINGS, "input", "q")),
    case(
        "8 MiB of escapes for the user, gzip",
        EMBEDDINGS,
        lambda m: string("user", E, EMBEDDINGS, rest=b'"input":[[1]]'),
    ),
    case("lists 2,000 deep", EMBEDDINGS, partial(nested, EMBEDDINGS, "input")),
    *texts_of(EMBEDDINGS),
    *texts_of(TOKENIZE),
    case(
        "3,900 integers of 4,299 digits, gzip",
        V2,
        lambda m: v2_numbers(integers(DIGITS), "INT64", m),
    ),
    case("260,000 integers of 60 digits, gzip", V2, lambda m: v2_numbers(integers(60), "INT64", m)),
    case("262,144 floats of 55 digits, gzip", V2, lambda m: v2_numbers(floats(55), "FP32", m)),
    case("20,000 floats of 800 digits, gzip", V2, lambda m: v2_numbers(floats(800), "FP32", m)),
    case("240 inputs", V2, v2_inputs),
    case("2,048 sequences", V2, v2_rows),
    case(
        "JSON: activations of 174,000 pads",
        V2,
        lambda m: v2_cells(m, "activations", pads(m.d_model)),
    ),
    case("JSON: logits of 2,200 pads", V2, lambda m: v2_cells(m, "logits", pads(width(m)))),
    case(
        "bytes: activations of 174,000 pads",
        V2,
        lambda m: v2_cells(m, "activations", pads(m.d_model), True),
    ),
    case("bytes: 3,300,000 cells, a wrong mask", V2, v2_wrong_mask),
    Case("unload and load", LOAD, unload_and_load, connections=1),
    case(
        "a head of 32 kB",
        "/v1/models",
        get("/v1/models", **{f"x{n}": "" for n in range(95)}, y="y" * 30_000),
    ),
    *(case("100 models", path, get(path), many=True) for path in (*READ, *READ_V2)),
    case("100 models", "/v2/repository/index", index, many=True),
    *(case("the page", path, get(path)) for path in PAGES),
]
