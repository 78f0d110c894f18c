"""The options of `addnorm embed`, `addnorm check` and `addnorm compare`. Imports no package of the
extra `corpus`, so that `--help` needs none."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from addnorm.service.engine.manifest import InputType
from addnorm.service.loading import addresses
from addnorm.service.options import Parser, above_zero, positive

KEY = "environment variable with the API key"
PROMPT = "default: the model's default prompt"
OUTPUTS = ("pooled", "sparse", "multi-vector", "scores")
BAD_ROWS = ("refuse", "null", "skip")
TASKS = ("embed", "rerank", "classify", "tag", "sparse")
DTYPES = ("float32", "float16", "int8")
EMBED = """\
Embeds the texts of Parquet, JSON Lines or CSV files without a server. The result has the rows of
IN in the same order, with all columns and the vectors.

To resume a job that was stopped or killed, run the same command again.

exit codes: 0 OUT is complete, 1 the job failed, 2 the command line is wrong, 130 interrupted"""
CHECK = """\
Embeds a sample of a Parquet file's rows again and compares the vectors with the stored vectors.
If `addnorm embed` wrote the file, its columns, precision, prompt and dimensions are the defaults.

With --pin it computes nothing, and compares the bits of the model's known answers with a file of
`addnorm pin`: it tells whether a new version of a library, a processor or a bundle moved vectors.

exit codes: 0 the vectors are equal, 1 they differ, 2 they cannot be compared

verdicts: bit-equal, other rows (of this file), some rows (a tenth or more are bit-equal), rounding,
scaled (different lengths), approximation (such as int8), other vectors. The limit of each is in
docs/vector-indexes.md."""
COMPARE = """\
Compares what A and B compute for the same texts: nearest neighbours of queries, cosines, ranks,
labels, entities. A and B can each be

  ORG/NAME[@PRECISION]          a model of the hub, exported at its first use
  DIR[@PRECISION]               a folder: of a checkpoint, or a bundle, <name>/<version>
  NAME[@PRECISION]              the newest version of a bundle in --bundles
  URL[#NAME][@PRECISION]        a running server
  FILE.parquet                  texts and vectors, as `addnorm embed` writes them (or s3://...)

`addnorm load beside` compares the speed of two servers.

exit codes: 0 the comparison is complete, 2 A and B cannot be compared"""


def embed_parser() -> Parser:
    parser = Parser(
        "embed",
        "IN OUT.parquet --model MODEL[@PRECISION]",
        EMBED,
        "texts.jsonl vectors.parquet --model BAAI/bge-small-en-v1.5",
    )
    add = parser.add_argument
    files = "a .parquet, .jsonl, .ndjson or .csv file, a folder of such files, or an s3:// address"
    add("input", metavar="IN", help=files)
    add("out", metavar="OUT.parquet", help="a local file or an s3:// address")
    named = "model that embeds the texts, as for `serve`: of the hub, a folder, or a bundle's name"
    add("--model", metavar=addresses.METAVAR, help=named)
    parser.needs_model = True
    parser.add_renamed("--bundle", "model", "--model")
    parser.add_renamed("--precision", "old_precision", "--model MODEL@PRECISION")
    taken = (
        "an earlier OUT, as a local file or an s3:// address: vectors of equal texts are reused"
        " if the options and the fingerprint are the same"
    )
    add("--from", dest="earlier", metavar="OLD.parquet", help=taken)
    unasked = "begin also if no vector of OLD can be reused, or the disk seems too small"
    add("--yes", action="store_true", help=unasked)
    estimated = "only print the number of rows to compute and the estimated time"
    add("--dry-run", action="store_true", help=estimated)
    of_price = "with --dry-run: price of one machine per hour; adds the cost to the estimate"
    add("--price-per-hour", type=above_zero, metavar="P", help=of_price)
    of_threads = "default: the number of cores"
    add("--worker-threads", type=positive, default=0, metavar="N", help=of_threads)
    _add_output(parser.add_argument_group("columns and vectors").add_argument)
    addresses.add_options(parser)
    return parser


def _add_output(add: Callable[..., Any]) -> None:
    add("--output", choices=OUTPUTS, default="pooled", help="kind of the output (default: pooled)")
    of_numbers = "type of the numbers (default: float32)"
    add("--dtype", choices=DTYPES, default="float32", help=of_numbers)
    of_bad_rows = (
        "what to do about rows whose text is null, not UTF-8 or too long: name them and stop, give"
        " them no vector, or leave them out (default: refuse)"
    )
    add("--bad-rows", choices=BAD_ROWS, default="refuse", help=of_bad_rows)
    add("--text-column", default="text", metavar="NAME", help="column of texts (default: text)")
    of_pairs = "with --output scores: column with the second text of each pair"
    add("--second-text-column", metavar="NAME", help=of_pairs)
    of_vectors = "column to write the vectors to (default: vector)"
    add("--vector-column", default="vector", metavar="NAME", help=of_vectors)
    add("--prompt-name", metavar="NAME", help=PROMPT)
    of_types = "with --output multi-vector or sparse: whether the texts are queries or documents"
    add("--input-type", choices=get_args(InputType), help=of_types)
    of_dimensions = "truncate each vector to its first N numbers"
    add("--dimensions", type=positive, metavar="N", help=of_dimensions)
    of_entries = "with --output sparse: only the N largest entries"
    add("--top-k", type=positive, metavar="N", help=of_entries)
    of_long = "truncate texts that are too long, instead of stopping"
    add("--truncate", action="store_true", help=of_long)


def check_parser() -> Parser:
    parser = Parser(
        "check",
        "(VECTORS.parquet | --pin FILE) --model MODEL[@PRECISION]",
        CHECK,
        "vectors.parquet --model http://localhost:8000",
    )
    add = parser.add_argument
    add("vectors", nargs="?", metavar="VECTORS.parquet", help="a local file or an s3:// address")
    add("--pin", type=Path, metavar="FILE", help="compare the bits of known answers with this file")
    named = (
        "model that embeds the texts: a server, URL[#NAME], or one that runs here, as for `serve`"
        " (PRECISION: by default that of the file, or the model's)"
    )
    add("--model", metavar=addresses.METAVAR, help=named)
    parser.needs_model = True
    parser.add_renamed("--bundle", "model", "--model")
    parser.add_renamed("--url", "old_url", "--model URL#NAME")
    parser.add_renamed("--precision", "old_precision", "--model MODEL@PRECISION")
    add("--text-column", metavar="NAME", help="column of texts (default: text)")
    add("--vector-column", metavar="NAME", help="column of vectors (default: vector)")
    of_stored = "fingerprint of the stored vectors; by default the one in the file's metadata"
    add("--fingerprint", metavar="DIGEST|JSON", help=of_stored)
    of_rows = "number of rows to compare (default: 1000)"
    add("--sample", type=positive, default=1000, metavar="N", help=of_rows)
    add("--seed", type=int, default=0, metavar="N", help="random seed of the rows (default: 0)")
    of_verdict = "also exit with 0 for this verdict, not only for bit-equal"
    add("--accept", choices=["rounding"], help=of_verdict)
    add("--prompt-name", metavar="NAME", help=PROMPT)
    of_dimensions = "number of dimensions, if the stored vectors were truncated"
    add("--dimensions", type=positive, metavar="N", help=of_dimensions)
    add("--api-key-env", metavar="VARIABLE", help=KEY)
    add("--json", type=Path, metavar="FILE", help="file for all figures")
    addresses.add_options(parser)
    return parser


def pin_parser() -> Parser:
    parser = Parser(
        "pin",
        "FILE --model MODEL[@PRECISION]",
        "Writes digests of the bits of a model's known answers to a file, to which `addnorm check"
        " --pin FILE` compares them after an upgrade.",
        "model.pin.json --model my-model",
    )
    add = parser.add_argument
    add("file", type=Path, metavar="FILE", help="file to write")
    named = "a server, URL[#NAME], or a model that runs here, as for `serve`"
    add("--model", required=True, metavar=addresses.METAVAR, help=named)
    add("--api-key-env", metavar="VARIABLE", help=KEY)
    addresses.add_options(parser)
    return parser


def compare_parser() -> Parser:
    parser = Parser(
        "compare", "A B --texts FILE", COMPARE, "my-model@fp32 my-model@int8 --texts texts.jsonl"
    )
    add = parser.add_argument
    add("a", metavar="A", help="see above")
    add("b", metavar="B", help="see above")
    of_texts = "file or folder of texts, in the formats of addnorm embed"
    add("--texts", required=True, metavar="FILE", help=of_texts)
    of_queries = "file of queries; by default a sample of the texts is held out as queries"
    add("--queries", metavar="FILE", help=of_queries)
    of_column = "column of texts in every file (default: text)"
    add("--text-column", default="text", metavar="NAME", help=of_column)
    of_queries = "column of texts in --queries (default: --text-column)"
    add("--query-column", metavar="NAME", help=of_queries)
    of_tasks = "what to compare; by default what the models are made for"
    add("--task", choices=TASKS, help=of_tasks)
    of_vectors = "column of vectors in .parquet files (default: vector)"
    add("--vector-column", default="vector", metavar="NAME", help=of_vectors)
    add("--prompt-name", metavar="NAME", help="prompt for texts, for models that have it")
    add("--query-prompt-name", metavar="NAME", help="prompt for queries, for models that have it")
    of_sample = "largest number of texts held out as queries (default: 1000)"
    add("--sample", type=positive, default=1000, metavar="N", help=of_sample)
    of_seed = "random seed of the texts held out (default: 0)"
    add("--seed", type=int, default=0, metavar="N", help=of_seed)
    add("--api-key-env", metavar="VARIABLE", help=KEY)
    add("--json", type=Path, metavar="FILE", help="file for all figures")
    add("--picture", type=Path, metavar="FILE.svg", help="file for a picture of the figures")
    addresses.add_options(parser)
    return parser
