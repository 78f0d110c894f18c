"""The words of `addnorm export --check`: findings in a source, in words, and what the export would
refuse before a graph is made: the model in PyTorch, behind the server's own endpoints, against its
authors' program."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from addnorm.export import sources, writer
from addnorm.export.certificate import parity
from addnorm.export.certificate.forward import refuse_unlike
from addnorm.export.certificate.served import Served, by_head, by_torch, path_of
from addnorm.export.graphs.graph import check_fit
from addnorm.export.sources import Source
from addnorm.export.wishes import NO_WISHES
from addnorm.export.words import texts as words
from addnorm.export.words.folder_tokenizer import NoTexts
from addnorm.export.words.texts import tokenizer_in_words
from addnorm.model.config import Pick
from addnorm.model.transformer import Transformer
from addnorm.service.engine import files
from addnorm.service.engine.batch import Batch, Floats, Rows
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.engine import Engine
from addnorm.service.engine.fingerprint import Fingerprint
from addnorm.service.engine.manifest import FORMAT, Manifest, Pooling
from addnorm.service.engine.model import Model

NUM_SHOWN = 5  # of labels, files and keys
POOLINGS: dict[Pooling, str] = {
    "mean": "the mean of its tokens",
    "first": "its first token",
    "last": "its last token",
    "max": "the largest values of its tokens",
    "weighted_mean": "the mean of its tokens, weighted by position",
    "mean_sqrt": "the sum of its tokens by the root of their number",
}
PICKS: dict[Pick, str] = {
    "every": "for each token",
    **{pooling: f"for each sequence, from {words}" for pooling, words in POOLINGS.items()},
}
BUDGET = 512  # tokens of a micro-batch


def findings(source: Source) -> Iterator[str]:
    """A line a finding."""
    config, loaded = source.model.config, source.loaded
    if loaded:
        address = "@".join(source.origin[key] for key in sources.HUB if key in source.origin)
        yield f"checkpoint: {address or source.folder}"
        yield f"family: {loaded.model_type}, {loaded.head or 'without a head'}"
    labels = source.facts["labels"]
    counts = {
        "layer": config.n_layers,
        "attention head": config.n_heads,
        "position": config.max_positions,
        "token type": config.type_vocab_size,
    }
    numbers = (f"{count:,} {noun}{'s' * (count > 1)}" for noun, count in counts.items())
    rest = f"d_model {config.d_model}, vocabulary of {config.vocab_size:,}"
    yield f"shape: {', '.join(numbers)}, {rest}"
    for output, head in config.heads.items():
        names = f": {_shorten(labels)}" if output == "logits" and labels else ""
        yield f"{output}: {head.width:,} {PICKS[head.pick]}{names}"
    yield f"tasks: {', '.join(source.tasks)}"
    norm_words = "normalized" if source.facts["normalize"] else "not normalized"
    yield f"pooling: {POOLINGS[source.facts['pooling']]}, {norm_words}"
    if loaded:
        default = loaded.authors.default_prompt_name
        prompts = _shorten(
            [f"{name} {prompt!r}" for name, prompt in loaded.authors.prompts.items()]
        )
        prompts += f"; {default} if a request has none" if default else ""
        yield f"prompts: {prompts or 'none'}"
        if joins := loaded.authors.token_pooling:
            kinds = " and ".join(joins.joined_in)
            yield (
                f"token vectors: joined to about 1 of {joins.factor:g}, as {kinds}; they are"
                " compared before that"
            )
    texts = source.texts
    yield f"texts: {f'no, because {texts}' if isinstance(texts, NoTexts) else texts}"
    if loaded and not isinstance(texts, NoTexts):
        yield f"tokenizer: {tokenizer_in_words(source.origin, texts)}"
    comparison = source.compared_with()
    name = comparison.get("name") or (
        "a preset" if comparison["kind"] == "preset" else "itself alone"
    )
    outputs = comparison.get("outputs", [])
    parts = [
        *([f"{', '.join(outputs)} of token ids"] if outputs else []),
        *comparison.get("texts", []),
    ]
    if "samples" in comparison:
        parts.append(f"{comparison['samples']:,} samples of yours")
    yield f"compared with: {name}{': ' if parts else ''}{'; '.join(parts)}"
    if loaded:
        num_bytes = sum(file.stat().st_size for file in loaded.files)
        types, names = " and ".join(loaded.dtypes), _shorten([*source.origin["weights"]])
        yield f"weights: {num_bytes / 1e6:,.1f} MB of {types} in {names}"
        # those that end in a dot are prefixes
        ignored_keys = [key for key in loaded.unused if not key.endswith(".")]
        yield f"ignored weights: {_shorten(ignored_keys) or 'none'}"
        if loaded.unread:
            yield f"fields that are not read: {_shorten(loaded.unread)}"
        yield from not_served(source)


def not_served(source: Source) -> Iterator[str]:
    """The authors' own parts beside it, and where they differ from the server's defaults."""
    loaded = source.loaded
    if loaded and loaded.beside:
        yield f"other files, not served: {', '.join(loaded.beside)}"
    if loaded and loaded.activation == "Identity":
        yield (
            "scores of pairs: the authors' scores are the logits (Identity): request them with"
            " raw_scores"
        )
    if loaded and loaded.authors.similarity != "cosine":
        yield f"similarity: {loaded.authors.similarity}"


def _shorten(names: Sequence[str]) -> str:
    rest = f" and {len(names) - NUM_SHOWN:,} more" if len(names) > NUM_SHOWN else ""
    return ", ".join(names[:NUM_SHOWN]) + rest


class TorchEngine(Engine):
    """PyTorch in the place of onnxruntime."""

    on_cores = False

    def __init__(
        self, reference: Transformer, bundle: Bundle, precision: str, num_threads: int = 1
    ) -> None:
        """reference: in the padded layout."""
        manifest = bundle.manifest
        self.d_model, self.n_norms, self.n_layers = (
            manifest.d_model,
            manifest.n_norms,
            bundle.n_layers,
        )
        self._reference, self._lens = reference, None
        self._head_widths = {name: bundle.width(name) for name in manifest.heads}
        self.fingerprint = Fingerprint.here(bundle.manifest_sha256, precision, "PyTorch")

    def compute(self, batch: Batch) -> Rows:
        grid = batch.grid()
        real = grid.attention_mask != 0
        return Rows(*(output[real] for output in by_torch(self._reference, grid)))

    def head(self, output: str, rows: Floats) -> Floats:
        return by_head(self._reference, output, rows)


def check(source: Source, name: str = "") -> Iterator[str]:
    """A line a comparison. name: of the bundle, the source's by default. UsageError, UnfitError,
    StartupError and CertificationError say why such a model is not exported."""
    writer.check_name(name or source.name)
    check_fit(source.model)
    with served_by_torch(source) as path:
        reference, limits = source.in_layout("padded"), path.model.bundle.manifest.limits
        for original in source.originals:
            refuse_unlike(reference, original, limits)
            yield f"compared: {original.compared.output} of token ids with {original.name}"
        checks = parity.texts_alike(path, source)
    for case in dict.fromkeys(check.case for check in checks):
        yield f"compared: {case}"


@contextmanager
def served_by_torch(source: Source) -> Iterator[Served]:
    """The model as a server would have it, without a graph. StartupError if it would refuse it."""
    open_engine = partial(TorchEngine, source.in_layout("padded"))
    with TemporaryDirectory() as folder:
        # all that the server needs to make token ids of texts, and answers of rows
        place, file_facts = Path(folder), {}
        if not isinstance(source.texts, NoTexts):
            words.write(source.texts, place, source.model.config.vocab_size)
            file_facts = {file.name: files.describe(file) for file in place.iterdir()}
        facts = writer.manifest_of(replace(source, wishes=NO_WISHES), "checked", 1)
        bundle = Bundle(place, Manifest(format=FORMAT, files=file_facts, **facts), "")
        model = Model(bundle, token_budget=BUDGET, open_engine=open_engine)
        with path_of(model) as path:
            yield path
