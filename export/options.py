"""The options of `addnorm export`, `addnorm verify` and `addnorm keep`. Imports no package of the
extra `export`, so that `--help` needs none."""

from argparse import SUPPRESS
from pathlib import Path
from typing import Any, get_args

from addnorm.service.engine.manifest import Precision
from addnorm.service.loading import addresses
from addnorm.service.options import Parser, Renamed

PRESETS = ("encoder", "gpt", "minilm", "notebook", "postnorm")
WHERE = "DIR|ORG/NAME[@REVISION]"
WITH_PRECISION = "a checkpoint's precisions stand behind its name, as in NAME@fp32,int8"
WEIGHTS = "the module's state_dict, saved with torch.save; only tensors are read from it"
HUB = "the name of a model on the Hugging Face hub, which is downloaded"


def export_parser() -> Parser:
    parser = Parser(
        "export",
        "MODEL[@PRECISION] | --preset NAME | --module PACKAGE.MODULE:FUNCTION",
        "Exports a model to ONNX and writes a certified bundle.",
        "BAAI/bge-small-en-v1.5@fp32,int8 --out bundles",
    )
    add = parser.add_mutually_exclusive_group(required=True).add_argument
    named = f"a folder, or {HUB}"
    add("checkpoint", nargs="?", default=SUPPRESS, metavar=f"{WHERE}[@PRECISION]", help=named)
    add(
        "--checkpoint",
        action=Renamed,
        dest="checkpoint",
        const="the model's name without it",
        help=SUPPRESS,
    )
    add("--preset", choices=PRESETS, help="a small built-in model with random weights")
    of_own = "a function of your code that returns a torch.nn.Module; the export calls it"
    add("--module", metavar="PACKAGE.MODULE:FUNCTION", help=of_own)
    add = parser.add_argument_group("with --module").add_argument
    add("--weights", type=Path, metavar="FILE", help=WEIGHTS)
    add("--tokenizer", type=Path, metavar="DIR", help="a folder with a tokenizer.json")
    _add_reading(parser)
    _add_writing(parser)
    return parser


def _add_reading(parser: Parser) -> None:
    group = parser.add_argument_group("reading of a checkpoint or a module")
    add = group.add_argument
    looks = (
        "only print the properties of the model; if it cannot be exported, print the reason and"
        " exit with 1"
    )
    add("--check", action="store_true", help=looks)
    left_out = (
        "leave out weights whose names begin with PREFIX, such as the weights of another head;"
        " may be repeated"
    )
    add("--ignore", action="append", default=[], metavar="PREFIX", help=left_out)
    names = (
        "file with the names of the logits, one per line, if the names in config.json are wrong"
        " or missing"
    )
    add("--labels", metavar="FILE|none", help=names)
    add(
        "--reference",
        choices=["author", "none"],
        default="author",
        help="program that the answers are compared with: author for the model's class in"
        " transformers or sentence-transformers; none if that class cannot run",
    )
    _add_comparing(group)
    as_written = (
        "read texts with tokenizer.json as it is, if the tokenizer class in transformers changes it"
    )
    add("--tokenizer-as-written", action="store_true", help=as_written)
    add(
        "--windows",
        type=int,
        metavar="N",
        help="read texts that are longer than the model takes in windows, which share N tokens; for"
        " models with labels and for rerankers",
    )
    add(
        "--windows-label",
        metavar="LABEL",
        help="label that decides between the windows of a text (default: the second of two)",
    )
    add(
        "--max-length",
        type=int,
        metavar="N",
        help="largest number of tokens in a sequence; longer texts are truncated to it (default:"
        " the authors' limit)",
    )


def _add_comparing(group: Any) -> None:
    runs = "run the code in the folder, only for the comparison with its authors' program"
    group.add_argument("--trust-remote-code", action="store_true", help=runs)
    group.add_argument(
        "--texts",
        metavar="FILE",
        help="file with your texts, one per line, to compare the answers on these as well; separate"
        " the two texts of a pair with a tab",
    )


def _add_writing(parser: Parser) -> None:
    add = parser.add_argument_group("output").add_argument
    out = "folder in which to write <name>/<version>/; with --as onnx, the output folder itself"
    add("--out", type=Path, metavar="BUNDLES", help=out)
    forms = ["bundle", "onnx"]
    as_onnx = (
        "form of the output: bundle for this server; onnx for a folder in optimum's layout, with"
        " onnx/model.onnx, for other programs that run ONNX"
    )
    add("--as", dest="form", choices=forms, default=forms[0], help=as_onnx)
    pooled = (
        "with --as onnx: add a second output, pooled and normalized as the model's authors do it"
    )
    add("--sentence-embedding", action="store_true", help=pooled)
    add("--name", help="name of the model (default: the name of the preset, folder or repository)")
    their_file = "ONNX file of the same model that you run today; prints how far its answers differ"
    add("--beside", type=Path, metavar="FILE", help=their_file)
    add("--version", type=int, help="version of the model (default: the next free whole number)")
    layouts = ["packed", "padded"]
    add(
        "--layout",
        choices=layouts,
        default="packed",
        help="layout of the graph (default: packed, which does not compute padding)",
    )
    precisions = (
        "of a preset or a module, one or more of fp32, fp16 (for GPUs) and int8 (quantized row by"
        f" row) (default: fp32); {WITH_PRECISION}"
    )
    add("--precision", metavar="P[,P]", help=precisions)
    recall = (
        "recall of int8, such as 0.99: keep matrices in fp32 until int8 returns this share of the"
        " 10 nearest neighbours that fp32 returns among --texts"
    )
    add("--keep-recall", type=float, metavar="SHARE", help=recall)
    of_requests = "precision of requests that do not set one (default: the first)"
    add("--default-precision", choices=get_args(Precision), help=of_requests)
    lens = (
        "let requests ask for the hidden states and the attention of each layer, in fp32; the"
        " server then keeps a second copy of the weights"
    )
    add("--lens", action="store_true", help=lens)


def verify_parser() -> Parser:
    parser = Parser(
        "verify",
        "MODEL[@PRECISION]",
        "Recomputes the certificate of a bundle on this machine.",
        "bundles/notebook/1",
    )
    named = "a bundle, as for `serve`; or a folder written with --as onnx"
    parser.add_argument("model", metavar=addresses.METAVAR, help=named)
    made_from = (
        f"checkpoint that the bundle was exported from, if it was not a preset: a folder, or {HUB}"
    )
    parser.add_argument("--checkpoint", metavar=WHERE, help=made_from)
    lie = "weights of your module, if the file has moved since the export"
    parser.add_argument("--weights", type=Path, metavar="FILE", help=lie)
    _add_comparing(parser)
    on_gpu = "cuda adds the results on this GPU to the certificate"
    parser.add_argument("--provider", choices=["cpu", "cuda"], default="cpu", help=on_gpu)
    addresses.add_options(parser)
    return parser


def keep_parser() -> Parser:
    parser = Parser(
        "keep",
        "MODEL[@PRECISION] ... --kept DIR",
        "Exports models for a later `addnorm serve` and caches the bundles. Models that are"
        " already cached are not exported again.",
        "BAAI/bge-small-en-v1.5@int8 --kept /models",
    )
    add = parser.add_argument
    add("models", nargs="+", metavar=f"{WHERE}[@PRECISION]", help="as for `serve`")
    parser.add_renamed("--precision", "old_precision", "MODEL@PRECISION")
    kept = "folder in which the bundles are cached"
    add("--kept", type=Path, required=True, metavar="DIR", help=kept)
    listed = "file for the folders of the bundles, one per line"
    add("--list", type=Path, metavar="FILE", help=listed)
    return parser
