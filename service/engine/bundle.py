"""The bundle format: reader and writer. A bundle is a folder `<name>/<version>/`:

manifest.json  model.onnx  certificate.json  tokenizer.json?
model.fp16.onnx?  model.int8.onnx?  model.int8.ranges.safetensors?
logits.onnx?  pooled.onnx?  token_vectors.onnx?      heads, by the output that they make
extraction.onnx?                                     from rows of words and labels to logits
token_weights.npy?                                   of queries' sparse vectors, by token id
lens.onnx?                                           the fp32 body seen from inside
*.onnx.data?                                         a graph's weights, if over 1 GiB, and those
                                                     that the lens shares
model.sig?                                           see signature.py

The manifest holds the sha256 of every file but the certificate, which holds the manifest's, and the
signature, which is made last and holds all of them.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from errno import EACCES
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import ValidationError

from addnorm.service.engine import files, signature
from addnorm.service.engine.files import TooLarge
from addnorm.service.engine.manifest import (
    FORMAT,
    Certified,
    Manifest,
    Task,
    compares_tokens,
    tasks_of,
)
from addnorm.service.engine.signature import SIGNATURE
from addnorm.service.errors import StartupError

MANIFEST, CERTIFICATE = "manifest.json", "certificate.json"
TOKENIZER = "tokenizer.json"
TOKEN_WEIGHTS = "token_weights.npy"
GPU_GRAPH = "model.cuda.onnx"  # fp32, with Attention and LayerNormalization
LENS = "lens.onnx"
EXTRACTION = "extraction.onnx"
GRAPH = ".onnx"  # ends of names
# JSON takes up to twenty times its bytes in memory. Those of large models have up to 1 MiB, their
# tokenizers 40 MiB.
MOST_JSON_BYTES, MOST_TOKENIZER_BYTES = 16 * 2**20, 128 * 2**20
NEVER = "1970-01-01T00:00:00+00:00"  # while it is being certified
# kinds of what a certificate compares with that a server may ask for: a program of transformers or
# sentence-transformers, a module of one's own, and presets
COMPARED = ("program", "reference", "preset")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True)
class Bundle:
    """A bundle on disk whose files match its manifest."""

    path: Path
    manifest: Manifest
    manifest_sha256: str
    certificate: dict[str, Any] | None = None  # None only while it is being certified

    @property
    def ref(self) -> str:
        return f"{self.manifest.name}/{self.manifest.version}"

    @property
    def created_s(self) -> float:
        """Unix time of the export."""
        timestamp = (self.certificate or {}).get("created") or self.manifest.created
        return datetime.fromisoformat(timestamp or NEVER).timestamp()

    @property
    def has_lens(self) -> bool:
        return LENS in self.manifest.files

    @property
    def n_layers(self) -> int:
        return int(self.manifest.config["n_layers"])

    @property
    def n_heads(self) -> int:
        """Attention heads of a layer."""
        return int(self.manifest.config["n_heads"])

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks that the model is made for."""
        manifest = self.manifest
        if manifest.extraction:
            return ("extract", "tag") if manifest.labels else ("extract",)
        is_causal = manifest.config.get("causal", False)
        tasks = tasks_of(manifest.heads, manifest.labels, manifest.limits.vocab_size, is_causal)
        if self.compares_tokens:
            tasks = (*tasks, "rerank")
        return tasks if self.has_vectors else tuple(task for task in tasks if task != "embed")

    @property
    def compares_tokens(self) -> bool:
        """It tells queries from documents, and scores the vectors of their tokens."""
        return compares_tokens(self.manifest.heads, self.manifest.input_types)

    @cached_property
    def rows_are_tokens(self) -> bool:
        """Rows are hidden states, which can be pooled. Those of a graph that makes its answers
        itself are not."""
        tensors, shape = self.manifest.as_it_is, [-1, -1, self.manifest.d_model]
        return tensors is None or [(t.name, t.shape) for t in tensors] == [("activations", shape)]

    @property
    def has_vectors(self) -> bool:
        return self.rows_are_tokens or "pooled" in self.manifest.heads

    @cached_property
    def pair_prompt(self) -> str:
        """The text before the first text of each pair: a classifier's default prompt, as
        CrossEncoder has it. Empty where a template of pairs has it already."""
        if "classify" not in self.tasks or self.manifest.pair_template:
            return ""
        return self.manifest.prompts.get(self.manifest.default_prompt_name or "", "")

    @cached_property
    def token_weights(self) -> NDArray[np.float32]:
        """The weight of each token id `[V]` in a query of an inference-free model. StartupError if
        the file is broken."""
        try:
            weights: NDArray[np.float32] = np.load(self.path / TOKEN_WEIGHTS, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise _refuse(self.path, f"{TOKEN_WEIGHTS} is broken: {error}", "export") from None
        shape = (self.manifest.limits.vocab_size,)
        if weights.dtype != np.float32 or weights.shape != shape:
            problem = (
                f"{TOKEN_WEIGHTS} is {weights.dtype} {weights.shape}, float32 {shape} is needed"
            )
            raise _refuse(self.path, problem, "export")
        return weights

    @property
    def compared_with(self) -> dict[str, Any]:
        """The program or module that its answers equal, as certified: `kind` and, if it has one,
        `name`."""
        reference = (self.certificate or {}).get("compared_with")
        # older exporters compared models in memory with themselves, folders with their own reading
        return reference or {"kind": next(iter(self.manifest.source), "itself")}

    @property
    def recall(self) -> dict[str, Any] | None:
        """The certificate's share of fp32's nearest texts that a search with int8 finds. None
        unless it was exported to keep a share."""
        return (self.certificate or {}).get("recall")

    @cached_property
    def peak_bytes(self) -> dict[int, int]:
        """Tokens of a sequence -> bytes that its run holds at its peak, ascending, of graphs as
        their authors wrote them: attention's scores grow with the square of the length. Empty where
        nothing was measured."""
        peaks = (self.certificate or {}).get("peak_bytes", {})
        return dict(sorted((int(length), peak) for length, peak in peaks.items()))

    def run_bytes(self, length: int) -> int:
        """The most bytes that the run of one sequence of so many tokens holds."""
        lengths, peaks = [0, *self.peak_bytes], [0, *self.peak_bytes.values()]
        # between two measured lengths the peak is below the line
        return math.ceil(np.interp(length, lengths, peaks))

    def longest_within(self, num_bytes: int) -> int:
        """Tokens of the longest sequence whose run holds no more than so many bytes."""
        if not self.peak_bytes:
            return self.manifest.limits.max_positions
        lengths, peaks = [0, *self.peak_bytes], [0, *self.peak_bytes.values()]
        return max(1, int(np.interp(num_bytes, peaks, lengths)))

    @property
    def is_compared(self) -> bool:
        """It was compared with the code of the model's authors. For a preset that is Addnorm."""
        return self.compared_with.get("kind") in COMPARED

    def width(self, output: str) -> int:
        """Numbers that the output's head makes of a row; the row's numbers if it has no head."""
        head = self.manifest.heads.get(output)
        return head.width if head else self.manifest.d_model

    def head(self, output: str) -> Path:
        """The graph of a head."""
        return self.path / head_file(output)

    def graph(self, precision: str, on_gpu: bool = False) -> Path:
        """on_gpu: fp32 has a graph of its own there, in bundles that are exported for a GPU."""
        if on_gpu and precision == "fp32" and GPU_GRAPH in self.manifest.files:
            return self.path / GPU_GRAPH
        return self.path / self.manifest.precisions[precision]


def head_file(output: str) -> str:
    return f"{output}.onnx"


def is_version(path: Path) -> bool:
    """A folder is named as a version of a model."""
    return path.name.isascii() and path.name.isdigit()


def unreadable(path: Path, error: OSError) -> str:
    """The reason why it cannot be read, and what to do. A common cause is another user's umask of
    077."""
    remedy = "repair or remove it"
    if error.errno == EACCES:
        remedy = f"let this user read it, with `chmod -R a+rX {path}`"
    file = error.filename or path
    return f"{file} cannot be read by user {os.geteuid()}: {error.strerror}; {remedy}"


def read(path: Path, trusted_keys: Sequence[Path] = ()) -> Bundle:
    """A certified bundle, every file checked against its sha256.

    trusted_keys: public keys and certificates, one of which must have signed it; none: anybody may
    have made it. StartupError names the first mismatch.
    """
    try:
        # before anything is parsed
        signed_digests = signature.check(path, trusted_keys) if trusted_keys else None
        bundle = read_uncertified(path)
        try:
            content = files.read(path / CERTIFICATE, MOST_JSON_BYTES)
            certificate = orjson.loads(content)
        except TooLarge as error:
            raise _refuse(path, str(error), "verify") from None
        except (FileNotFoundError, ValueError):
            raise _refuse(path, f"{CERTIFICATE} is missing or broken", "verify") from None
    except OSError as error:
        raise StartupError(f"bundle {path}: {unreadable(path, error)}") from None
    if not isinstance(certificate, dict):
        raise _refuse(path, f"{CERTIFICATE} is missing or broken", "verify")
    if certificate.get("manifest_sha256") != bundle.manifest_sha256:
        raise _refuse(path, f"{CERTIFICATE} belongs to a different {MANIFEST}", "verify")
    if certificate.get("passed") is not True:
        raise _refuse(path, f"{CERTIFICATE} records a failed check", "export")
    try:  # what the server needs of it
        server_part = Certified.model_validate(certificate)
    except ValidationError as error:
        raise _refuse(path, f"{CERTIFICATE} is broken: {_first(error)}", "verify") from None
    if misfit := server_part.misfit(bundle.manifest):
        raise _refuse(path, f"{CERTIFICATE} is broken: {misfit}", "verify")
    # the manifest has the sha256 of the other files, as they were read
    certificate_sha256 = hashlib.sha256(content).hexdigest()
    digests = {MANIFEST: bundle.manifest_sha256, CERTIFICATE: certificate_sha256}
    if signed_digests is not None and not digests.items() <= signed_digests.items():
        raise StartupError(f"bundle {path} changed while it was being read; load it again")
    return replace(bundle, certificate=certificate)


def read_uncertified(path: Path) -> Bundle:
    """A bundle whose files match its manifest, certified or not yet."""
    try:
        content = files.read(path / MANIFEST, MOST_JSON_BYTES)
        manifest = Manifest.model_validate_json(content)
    except FileNotFoundError:
        if not path.is_dir():
            raise StartupError(f"bundle {path}: the folder does not exist") from None
        if is_version(path):
            raise _refuse(path, f"{MANIFEST} is missing", "export") from None
        inside = chain(path.glob(f"*/{MANIFEST}"), path.glob(f"*/*/{MANIFEST}"))
        example = next((file.parent for file in inside), "bundles/notebook/1")
        problem = f"{MANIFEST} is missing: a bundle is a folder <name>/<version>, such as {example}"
        raise StartupError(f"bundle {path}: {problem}") from None
    except TooLarge as error:
        raise _refuse(path, str(error), "export") from None
    except ValidationError as error:
        raise _refuse(path, f"{MANIFEST} is broken: {_first(error)}", "export") from None
    if manifest.format != FORMAT:
        problem = (
            f"{MANIFEST} has format {manifest.format}, but this version of addnorm reads format"
            f" {FORMAT}"
        )
        raise _refuse(path, problem, "export")
    if misfit := manifest.misfit():
        raise _refuse(path, f"{MANIFEST} has {misfit}", "export")
    # it must have all that is loaded, as it is, with the files that graphs take weights from. All
    # of these lie in the bundle's folder
    tokenizer = manifest.files.get(TOKENIZER)
    if tokenizer and tokenizer.num_bytes > MOST_TOKENIZER_BYTES:
        size = tokenizer.num_bytes
        problem = f"{TOKENIZER} has {size} bytes, the limit is {MOST_TOKENIZER_BYTES}"
        raise _refuse(path, problem, "export")
    columns = {tensor.name for tensor in manifest.as_it_is or ()}
    heads = [head_file(name) for name in manifest.heads if name not in columns]
    heads += [EXTRACTION] if manifest.extraction else []
    for name in sorted({*manifest.precisions.values(), *heads, *manifest.files}):
        if name not in manifest.files:
            raise _refuse(path, f"{MANIFEST} has no sha256 of {name}, which is loaded", "export")
        if difference := files.difference(path / name, manifest.files[name]):
            raise _refuse(path, difference, "export")
        if name.endswith(GRAPH):
            try:
                file_names = files.files_beside(path / name)
            except ValueError as error:
                raise _refuse(path, f"{name} is not a valid graph: {error}", "export") from None
            for file_name in sorted(file_names - manifest.files.keys()):
                problem = (
                    f"{MANIFEST} has no sha256 of {file_name[:100]!r}, which has weights of {name}"
                )
                raise _refuse(path, problem, "export")
    return Bundle(path, manifest, hashlib.sha256(content).hexdigest())


def _first(error: ValidationError) -> str:
    """The first problem, in one line."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(" ".join(str(part).split())[:100] for part in first["loc"]) or "JSON"
    return f"{place}: {first['msg']}"


def write_manifest(path: Path, manifest: dict[str, Any]) -> Bundle:
    """Writes the manifest for the files in `path`, and reads it back.

    manifest: all fields but format and files.
    """
    entries = {
        file.name: files.describe(file)
        for file in sorted(path.iterdir())
        if file.name not in (MANIFEST, CERTIFICATE, SIGNATURE)
    }
    complete = Manifest(format=FORMAT, files=entries, **manifest)
    # fields that most lack: bundles written before keep their sha256
    left_out: dict[str, Any] = {"created": True}
    for name in ("as_it_is", "clipped_layers", "extraction", "windows"):
        if not getattr(complete, name):
            left_out[name] = True
    if complete.sparse_activation == "relu":
        left_out["sparse_activation"] = True
    if complete.default_input_type == "document":
        left_out["default_input_type"] = True
    if not complete.is_inference_free:
        left_out["input_types"] = {kind: {"inference_free"} for kind in complete.input_types}
    if complete.left_out_ids is None:
        left_out["left_out_ids"] = True
    if complete.limits.input_width is None:
        left_out["limits"] = {"input_width": True}
    if complete.int8.keep_recall is None:
        left_out["int8"] = {"float_weights": True, "keep_recall": True}
    content = complete.model_dump_json(indent=2, exclude=left_out)
    (path / MANIFEST).write_text(content + "\n")
    return read_uncertified(path)


def write_certificate(bundle: Bundle, certificate: dict[str, Any]) -> None:
    """Completes and writes the certificate. created: now, unless the certificate has it."""
    complete = {
        "bundle": bundle.ref,
        "manifest_sha256": bundle.manifest_sha256,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        **certificate,
    }
    partial = bundle.path / f".{CERTIFICATE}"
    partial.write_text(json.dumps(complete, indent=2) + "\n")
    partial.rename(bundle.path / CERTIFICATE)


def _refuse(path: Path, problem: str, remedy: Literal["export", "verify"]) -> StartupError:
    advice = {
        "export": "export it again with `addnorm export`",
        "verify": f"certify it with `addnorm verify {path}`",
    }[remedy]
    return StartupError(f"bundle {path}: {problem}; {advice}")
