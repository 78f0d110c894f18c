"""A folder of one model as optimum and the hub have it, for programs that run ONNX themselves:

onnx/model.onnx  onnx/model_int8.onnx?     the bundle's graphs by the names that others look for
onnx/README.md                             the model card: inputs, outputs, figures
config.json  model.safetensors  ...        the files that it was made of: it is a checkpoint too
certificate.json                           of the bundle, and in `onnx` of these files

A bundle is written and certified first, and removed at the end. The files are then compared with
its graphs node by node, and their bits, as onnxruntime runs them by default, with its answers.
"""

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime as ort
from pydantic_core import to_jsonable_python
from safetensors.numpy import load_file
from tqdm import tqdm

from addnorm.export import writer
from addnorm.export.certificate import served
from addnorm.export.certificate.certificate import (
    Certificate,
    Check,
    refuse_failures,
    table_row,
)
from addnorm.export.certificate.graph import structure
from addnorm.export.certificate.graph.exact import RANGES, Expected
from addnorm.export.certificate.served import Case, CertificationError, Served
from addnorm.export.graphs import model_file
from addnorm.export.graphs.model_file import Graph
from addnorm.export.graphs.standalone import (
    EMBEDDING,
    HIDDEN,
    LOGITS,
    SPANS,
    Headed,
    make_standalone,
)
from addnorm.export.sources import Source
from addnorm.export.wishes import UsageError
from addnorm.export.words.folder_tokenizer import NoTexts
from addnorm.export.words.texts import is_as_written
from addnorm.export.writer import say
from addnorm.service import VERSION
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine import files
from addnorm.service.engine.bundle import CERTIFICATE, MANIFEST, TOKENIZER, Bundle
from addnorm.service.engine.manifest import SPANS as SPAN_LABELS
from addnorm.service.engine.manifest import File, Manifest
from addnorm.service.engine.model import Model
from addnorm.service.engine.session import file_bytes
from addnorm.service.errors import StartupError
from addnorm.service.loading.known_answers import different

FOLDER, CARD, BUNDLE = "onnx", "README.md", ".bundle."
FILES = {"fp32": "model.onnx", "int8": "model_int8.onnx"}  # by precision
STORED_RANGES = "model_int8.ranges.safetensors"
# beside the weights: configuration, tokenizers, the authors' card and licence, code that they need
COPIED = (".json", ".txt", ".model", ".jinja", ".md", ".py", "LICENSE", "NOTICE")
NOT_COPIED = (FOLDER, "openvino", MANIFEST, CERTIFICATE)
# transformers 5 and sentence-transformers 6 have no ONNX backend. Those before them have one, and
# know only these names, which the later read too: by file, a pattern and what takes its place
OLDER_NAMES = {
    "tokenizer_config.json": ("TokenizersBackend", "PreTrainedTokenizerFast"),
    "modules.json": (
        r"sentence_transformers\.(base|sentence_transformer)\.modules\.\w+\.",
        "sentence_transformers.models.",
    ),
}
CHOICES = (
    "ignore",
    "labels",
    "max_length",
    "tokenizer",
)  # of whoever exports, in a source's origin
SERVED = {  # by a file's output
    HIDDEN: "activations", EMBEDDING: "pooled", **dict.fromkeys((LOGITS, *SPANS), "logits"),
}  # fmt: skip


@dataclass(frozen=True)
class OnnxFolder:
    """A folder whose files match its certificate. has_embedding: whether it pools inside."""

    path: Path
    manifest: Manifest  # of the bundle that it was made with
    certificate: Mapping[str, Any]
    has_embedding: bool


def is_one(path: Path) -> bool:
    return (path / FOLDER).is_dir() and not (path / MANIFEST).exists()


def read(path: Path) -> OnnxFolder:
    """StartupError says what does not match."""
    try:
        certificate = json.loads((path / CERTIFICATE).read_text())
        section = certificate["onnx"]
        manifest = Manifest.model_validate(section["manifest"])
        file_facts = {name: File(**entry) for name, entry in section["files"].items()}
        has_embedding = bool(section["sentence_embedding"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        words = f"{CERTIFICATE} is missing or broken: {type(error).__name__}: {error}"
        raise StartupError(f"{path}: {words}; export it again") from None
    for name, file in file_facts.items():
        if difference := files.difference(path / name, file):
            raise StartupError(f"{(path / name).parent}: {difference}; export it again")
    for graph in (path / FOLDER).glob("*.onnx"):
        if f"{FOLDER}/{graph.name}" not in file_facts:
            raise StartupError(f"{graph} is not in the certificate: remove it")
    return OnnxFolder(path, manifest, certificate, has_embedding)


def export(source: Source, out: Path, has_embedding: bool = False) -> Path:
    """Writes the folder `out`, certified. Nothing is there unless every check has passed.

    has_embedding: whether the files have the output `sentence_embedding` too. UsageError for what
    other programs have no names for, and for an `out` that is there already.
    """
    out, wishes = out.resolve(), source.wishes
    if {*wishes.precisions} - FILES.keys() or wishes.lens or wishes.layout != "packed":
        precisions = f"{' and '.join(FILES)} alone, without a lens"
        raise UsageError(f"--as onnx needs the packed layout and the precisions {precisions}")
    if source.model.config.unseen_id is not None:
        raise UsageError(
            "--as onnx cannot fill queries with tokens that no other sees: other programs mask"
            " them, and the graph then has no rows for them. Export a bundle, and serve it"
        )
    if has_embedding and "logits" in source.model.config.heads:
        raise UsageError(
            f"{EMBEDDING} is possible for embedding models only, this model has logits"
        )
    if not bundles.NAME.fullmatch(out.name):
        raise UsageError(
            f"--out {out}: the folder's name becomes the model's name, which must match"
            f" {bundles.NAME.pattern}"
        )
    if source.folder and out.is_relative_to(source.folder):
        raise UsageError(f"--out {out} lies in the checkpoint: choose a folder outside it")
    source = under_name(source, out.name)
    with writer.written_whole(out) as partial:
        (partial / FOLDER).mkdir()
        _copy(source, partial)
        with _bundle(source, partial) as (bundle, expected):
            for precision, graph in _graphs(bundle, has_embedding):
                say(f"writing {FOLDER}/{FILES[precision]}")
                model_file.save(graph, partial / FOLDER / FILES[precision])
            if (bundle.path / RANGES).exists():
                shutil.copyfile(bundle.path / RANGES, partial / FOLDER / STORED_RANGES)
            _certify(bundle, source, partial, has_embedding, expected)
    return out


def certify_again(folder: OnnxFolder, source: Source) -> None:
    """Makes the folder's certificate again, here. UsageError if it was made from something else."""
    manifest, before = folder.manifest, folder.certificate
    source = under_name(source, manifest.name)
    in_json = to_jsonable_python({"source": source.origin, **source.facts})
    for name, value in in_json.items():
        recorded = manifest.model_dump(mode="json")[name]
        if recorded != value:
            verb = "was exported from" if name == "source" else f"has {name}"
            raise UsageError(f"{folder.path} {verb} {recorded}, but this model is {value}")
    samples = source.samples_record()
    if before["compared_with"].get("samples_sha256") != samples.get("samples_sha256"):
        raise UsageError(f"{folder.path} was compared on other samples: give the same samples")
    wishes = replace(
        source.wishes, precisions=(*manifest.precisions,),
        default_precision=manifest.default_precision,
    )  # fmt: skip
    ranges_file = folder.path / FOLDER / STORED_RANGES
    ranges = load_file(ranges_file) if ranges_file.exists() else None
    with _bundle(replace(source, wishes=wishes), folder.path, ranges) as (bundle, _):
        new = _certify(bundle, source, folder.path, folder.has_embedding, None, before["created"])
    for precision, digests in new.known_digests.items():
        if different(before["known_digests"].get(precision, {}), digests):
            say(f"{precision} has different bits here than on {before['processor']}")
    print(f"verified {folder.path}")


def under_name(source: Source, name: str) -> Source:
    """The source as `addnorm export` finds it in a folder of this name with its files,
    wherever those came from. Others keep their origin."""
    source, loaded = replace(source, name=name), source.loaded
    if not loaded:
        return source
    root = _root(source)
    weights = {file.relative_to(root).as_posix(): files.sha256(file) for file in loaded.files}
    choices = {key: source.origin[key] for key in CHOICES if key in source.origin}
    origin = {"checkpoint": name, "weights": weights, "unused": loaded.unused, **choices}
    return replace(source, origin=origin)


def _root(source: Source) -> Path:
    """The folder of a checkpoint, with the links to it that its files of weights have."""
    assert source.loaded
    inner = source.loaded.folder
    return next(path for path in (inner, *inner.parents) if path.resolve() == source.folder)


def _copy(source: Source, folder: Path) -> None:
    if source.folder is None:
        return
    root, weights = source.folder, set[Path]()
    if source.loaded:
        root = _root(source)
        weights = {file.relative_to(root) for file in source.loaded.files}
    for file in sorted(root.rglob("*")):
        name = file.relative_to(root)
        is_copied = file.name.endswith(COPIED) and name.parts[0] not in NOT_COPIED
        if file.is_file() and (is_copied or name in weights):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            if file.name in OLDER_NAMES:
                (folder / name).write_text(re.sub(*OLDER_NAMES[file.name], file.read_text()))
            else:
                shutil.copyfile(file, folder / name)
    _write_choices(source, folder)


def _write_choices(source: Source, folder: Path) -> None:
    """Writes what is certified into the files that programs read, where those say otherwise, or
    where whoever exports does: the tokenizer, the longest text, the labels."""
    texts, labels = source.texts, source.facts["labels"]
    changes: dict[str, dict[str, Any]] = {}
    if not isinstance(texts, NoTexts):
        # cutting and padding are programs' own, and stay as they are there
        file = folder / TOKENIZER
        file_fields = json.loads(file.read_text()) if file.exists() else {}
        our_fields = json.loads(texts.tokenizer)
        program_settings = {name: file_fields.get(name) for name in ("truncation", "padding")}
        if file_fields | program_settings != our_fields | program_settings:
            file.write_text(json.dumps(our_fields | program_settings, ensure_ascii=False))
        changes["tokenizer_config.json"] = {"model_max_length": texts.max_text_tokens}
        for file in folder.glob("sentence_*_config.json"):
            changes[file.name] = {"max_seq_length": texts.max_text_tokens}
        if is_as_written(source.origin):  # by this class the file alone counts
            changes["tokenizer_config.json"]["tokenizer_class"] = "PreTrainedTokenizerFast"
    if "labels" in source.origin and labels:
        by_id = {str(index): label for index, label in enumerate(labels)}
        by_label = {label: index for index, label in enumerate(labels)}
        changes["config.json"] = {"id2label": by_id, "label2id": by_label}
    for name, new_fields in changes.items():
        if (file := folder / name).exists():
            file_fields = json.loads(file.read_text())
            file.write_text(
                json.dumps(file_fields | new_fields, indent=2, ensure_ascii=False) + "\n"
            )


@contextmanager
def _bundle(
    source: Source, folder: Path, ranges: dict[str, Any] | None = None
) -> Iterator[tuple[Bundle, Expected]]:
    """A bundle within the folder, not yet certified, and what it was written from."""
    with TemporaryDirectory(dir=folder, prefix=BUNDLE) as root:
        yield writer.write_uncertified(source, Path(root), source.name, 1, ranges)


@contextmanager
def files_of(bundle: Bundle) -> Iterator[Path]:
    """A bundle's graphs as such a folder has them, while the block lasts."""
    with TemporaryDirectory() as root:
        for precision, graph in _graphs(bundle, "logits" not in bundle.manifest.heads):
            model_file.save(graph, Path(root) / FILES[precision])
        yield Path(root)


def _graphs(bundle: Bundle, has_embedding: bool) -> Iterator[tuple[str, Graph]]:
    """The graph of each precision."""
    manifest = bundle.manifest
    heads = {
        output: Headed(head.pick, head.width, model_file.load(bundle.head(output)))
        for output, head in manifest.heads.items()
    }
    embedding = heads.get("pooled", Headed(manifest.pooling, manifest.d_model))
    for precision in [name for name in FILES if name in manifest.precisions]:
        body = model_file.load(bundle.graph(precision))
        yield (
            precision,
            make_standalone(
                body,
                heads.get("logits"),
                embedding if has_embedding else None,
                manifest.normalize,
                spans=manifest.labels == SPAN_LABELS,
            ),
        )


def _certify(
    bundle: Bundle,
    source: Source,
    folder: Path,
    has_embedding: bool,
    expected: Expected | None,
    created: str | None = None,
) -> Certificate:
    """Writes the certificate of the folder, and returns it. CertificationError names what failed.
    expected: as in `certificate_of`. created: when the files were made; now if None."""
    checks = list[Check]()
    for precision, expected_graph in _graphs(bundle, has_embedding):
        name = f"{FOLDER}/{FILES[precision]}"
        try:
            differences = [*structure.differences(model_file.load(folder / name), expected_graph)]
        except ValueError as error:
            differences = [str(error)]
        if differences:
            raise CertificationError(f"{name}: {'; '.join(differences[:3])}")
        checks.append(Check(f"{name}, graph", "differences", precision, 0, 0))
        tqdm.write(table_row(checks[-1:]))
    bundle_certificate = writer.certificate_of(bundle, source, expected)
    with served.path_of(Model(bundle)) as path:
        for precision in bundle.manifest.precisions:
            name = f"{FOLDER}/{FILES[precision]}"
            session = ort.InferenceSession(folder / name, providers=["CPUExecutionProvider"])
            unequal = 0
            for case in served.cases(bundle.manifest.limits):
                unequal += sum(_unequal_outputs(path, session, case, precision))
            checks.append(Check(f"{name}, bits", "unlike the server's", precision, unequal, 0))
            tqdm.write(table_row(checks[-1:]))
    refuse_failures(checks)
    certificate = replace(bundle_certificate, checks=(*bundle_certificate.checks, *checks))
    (folder / FOLDER / CARD).write_text(_card(bundle, certificate, folder))
    file_facts = {
        file.relative_to(folder).as_posix(): files.describe(file).model_dump()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file != folder / CERTIFICATE
        if not file.relative_to(folder).parts[0].startswith(BUNDLE)
    }
    section = {
        "manifest": bundle.manifest.model_dump(mode="json"),
        "sentence_embedding": has_embedding,
        "files": file_facts,
    }
    certificate = replace(certificate, extras={**certificate.extras, "onnx": section})
    fields = certificate.as_json() | ({"created": created} if created else {})
    bundles.write_certificate(bundle, fields)
    shutil.copyfile(bundle.path / CERTIFICATE, folder / CERTIFICATE)
    return certificate


def _unequal_outputs(
    path: Served, session: ort.InferenceSession, case: Case, precision: str
) -> Iterator[bool]:
    """For each output of a file, whether a row of it has other bits than the server's answer."""
    manifest, grid = path.model.bundle.manifest, case.grid()
    real = grid.attention_mask != 0
    has_tokens, last = real.any(1), real.shape[1] - 1 - real[:, ::-1].argmax(1)
    types = np.zeros_like(grid.input_ids) if grid.token_type_ids is None else grid.token_type_ids
    cells = {**grid._asdict(), "token_type_ids": types}
    outputs = session.run(None, {node.name: cells[node.name] for node in session.get_inputs()})
    for output, values in zip((node.name for node in session.get_outputs()), outputs, strict=True):
        name = SERVED[output]
        restriction = path.few_values(name, case)
        options: dict[str, Any] = {name: restriction} if restriction else {}
        if output == EMBEDDING:
            options["normalize"] = manifest.normalize
        answer = path.ask(case, precision, outputs=[name], **options)[name]
        if output in SPANS:
            expected, rows = served.real_rows(answer, real, case), values[real]
            expected = expected[:, SPANS.index(output)]
        elif values.ndim == 3 and restriction.get("positions") != "last":
            expected, rows = served.real_rows(answer, real, case), values[real]
        elif values.ndim == 3:  # of many logits, those of each sequence's last token
            rows = values[np.arange(len(values)), last][has_tokens]
            expected = np.array(answer)[has_tokens]
        else:
            expected, rows = np.array(answer)[has_tokens], values[has_tokens]
        yield rows.tobytes() != expected.astype(np.float32).tobytes()


def _card(bundle: Bundle, certificate: Certificate, folder: Path) -> str:
    """The model card, in Markdown."""
    compared = certificate.compared_with
    is_module = "module" in bundle.manifest.source
    again = "`verify_onnx` with the module" if is_module else "`addnorm verify` on the folder above"
    rows = list[str]()
    for precision in bundle.manifest.precisions:
        file = folder / FOLDER / FILES[precision]
        checks = [check for check in certificate.checks if check.precision == precision]
        cosines = [check.difference for check in checks if check.output.endswith("cosine")]
        session = ort.InferenceSession(file, providers=["CPUExecutionProvider"])
        inputs, outputs = (
            ", ".join(f"`{node.name}`" for node in nodes)
            for nodes in (session.get_inputs(), session.get_outputs())
        )
        cells = file.name, inputs, outputs, f"{file_bytes(file) / 1e6:.1f}"
        rows.append(f"| {' | '.join(cells)} | {1 - max(cosines, default=0):.7f} | {len(checks)} |")
    # what a program must know that pools and cuts itself
    manifest = bundle.manifest
    sentences = [f"Pooling: {manifest.pooling}{', then length 1' if manifest.normalize else ''}."]
    if manifest.limits.max_text_tokens:
        sentences.append(f"Texts are truncated to {manifest.limits.max_text_tokens:,} tokens.")
    for name, prompt in manifest.prompts.items():
        default = ", for every text" if name == manifest.default_prompt_name else ""
        sentences.append(f"The prompt {name!r}{default}: {prompt!r}.")
    return f"""# {manifest.name} as ONNX

Made and certified by Addnorm {VERSION}, compared with {compared.get("name", compared["kind"])}.

| file | inputs | outputs | MB | lowest cosine | checks passed |
|---|---|---|---|---|---|
{chr(10).join(rows)}

{" ".join(sentences)}

A sequence has the same bits alone, in any batch and with any padding, on one processor, with
onnxruntime 1.21 or later. {again} recomputes `certificate.json`, which has every check.
"""
