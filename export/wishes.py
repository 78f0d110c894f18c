"""A person's wishes of an export. `export_bundle`, `export_onnx` and the command make them, and
every step reads them. `verify` makes them of a manifest."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from addnorm.service.engine.manifest import Pooling, WindowRule

PRECISIONS = ("fp32", "fp16", "int8")
Text = str | tuple[str, str]
Sample = Any  # a Text, token ids `[S]` or `[B, S]`, or float vectors with another axis
AS_WRITTEN = {"tokenizer": "as written"}  # in the manifest's `source`
ModuleTask = Literal["embed", "rerank", "classify", "tag"]
# fields of `Wishes` whose option of the command has another name
OPTIONS = {
    "own_reading": "--reference",
    "runs_code": "--trust-remote-code",
    "samples": "--texts",
    "precisions": "@PRECISION",
}
# fields that say how a graph is written. All graphs of ours read them
OF_GRAPHS = ("graph", "layout", "precisions", "default_precision", "lens")
# and those that every model reads which is in memory
OF_MODELS = (
    *OF_GRAPHS, "keep_recall", "labels", "pooling", "normalize", "tokenizer", "max_length",
    "samples", "windows", "windows_label",
)  # fmt: skip


class UsageError(Exception):
    """The arguments do not fit together, or with what is on disk."""


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """UsageError for precisions that do not exist, and for a lens or a recall that cannot be.

    graph: "fastest" is one of ours if the model has one, "packed" that alone, "authors" the
    model's own. layout: "packed" computes no pads, "padded" is the baseline of benchmarks.
    keep_recall: a share of the 10 nearest of the samples beside fp32, which int8 must find.

    ignore: what the keys of weights begin with that are left out. tokenizer_as_written: texts are
    read by the folder's file alone, in the authors' program too. runs_code: the folder's own code
    may be run for the authors' program. tokenizer: a folder. max_length: tokens of a text, and of a
    sequence.

    labels: names of the logits, in order; empty for none. task: what an answer is for, where
    neither labels nor pooling tell. outputs: the served tensors of an answer with several, by name;
    or names for those of a tuple, in order.

    windows: tokens that windows of long texts share, of a model with labels or of a reranker.
    windows_label: the label that decides between them.

    reference: what is called in place of a module. own_reading: a folder is compared with our
    reading alone. samples: compared beside ours. max_positions, vocab_size, input_width: of a
    module that does not show them. batch_first: a module takes `[B, S]`, else `[S, B]`.

    by_command: messages name fields as options of the command.
    """

    graph: Literal["fastest", "packed", "authors"] = "fastest"
    layout: str = "packed"
    precisions: tuple[str, ...] = ("fp32",)
    default_precision: str = ""  # the first
    lens: bool = False
    keep_recall: float | None = None
    ignore: tuple[str, ...] = ()
    tokenizer_as_written: bool = False
    runs_code: bool = False
    tokenizer: Path | None = None
    max_length: int | None = None
    labels: tuple[str, ...] | None = None
    pooling: Pooling | None = None
    normalize: bool | None = None
    task: ModuleTask | None = None
    outputs: tuple[str, ...] = ()
    windows: int | None = None
    windows_label: str | None = None
    reference: Callable[..., Any] | None = None
    own_reading: bool = False
    samples: tuple[Sample, ...] = ()
    max_positions: int | None = None
    vocab_size: int | None = None
    input_width: int | None = None
    batch_first: bool | None = None
    by_command: bool = False

    def __post_init__(self) -> None:
        names = self.precisions
        if not names or set(names) - set(PRECISIONS) or len(set(names)) < len(names):
            raise UsageError(
                f"precision {','.join(names)}: it must be some of fp32, fp16 and int8, each"
                " at most once"
            )
        if self.default_precision not in ("", *names):
            among = f"the precisions {', '.join(names)}"
            raise UsageError(f"default precision {self.default_precision} is not among {among}")
        if self.keep_recall is not None:
            if not 0 < self.keep_recall <= 1:
                raise UsageError(
                    f"keep_recall is {self.keep_recall:g}, but must be above 0 and at most 1"
                )
            if "int8" not in names:
                raise UsageError(
                    f"keep_recall needs int8, but the precisions are {', '.join(names)}"
                )
        if self.task not in (None, *get_args(ModuleTask)):
            tasks = ", ".join(get_args(ModuleTask))
            raise UsageError(f"task is {self.task!r}, but must be one of {tasks}")
        if self.windows is None and self.windows_label is not None:
            raise UsageError(f"{self.option('windows_label')} needs {self.option('windows')}")
        if self.windows is not None and self.windows < 0:
            raise UsageError(f"{self.option('windows')} is {self.windows}, but must be 0 or more")
        if self.lens and (self.layout != "packed" or "fp32" not in names):
            raise UsageError(
                f"a lens needs the packed layout and fp32, but the layout is {self.layout} and"
                f" the precisions are {','.join(names)}"
            )

    @property
    def first_precision(self) -> str:
        """The precision of requests that name none."""
        return self.default_precision or self.precisions[0]

    @property
    def is_for_gpus(self) -> bool:
        """True if fp32 is also written as a GPU runs it: where fp16 is, which is for GPUs."""
        return self.layout == "packed" and {"fp32", "fp16"} <= {*self.precisions}

    def option(self, field: str) -> str:
        """The name by which the person knows a field."""
        name = field.replace("_", "-")
        return OPTIONS.get(field, f"--{name}") if self.by_command else field

    def check_read(self, reader: str, read: Collection[str]) -> None:
        """UsageError for a wish that this reader does not read. reader: in words."""
        for field in fields(self):
            is_set = getattr(self, field.name) != field.default
            if is_set and field.name not in (*read, "by_command"):
                option = self.option(field.name)
                raise UsageError(f"{option} has no effect for {reader}: leave it out")

    def recorded(self) -> dict[str, Any]:
        """The manifest's record of how a model was read: lists for tuples, so that JSON gives it
        back."""
        chosen = {
            "ignore": [*self.ignore] or None,
            "labels": None if self.labels is None else [*self.labels],
            "max_length": self.max_length,
            **(AS_WRITTEN if self.tokenizer_as_written else {}),
        }
        return {name: value for name, value in chosen.items() if value is not None}

    @property
    def window_rule(self) -> WindowRule | None:
        """The manifest's rule for texts that are longer than the model takes."""
        if self.windows is None:
            return None
        return WindowRule(overlap=self.windows, label=self.windows_label)

    @property
    def texts(self) -> list[Text]:
        """Samples that are texts, or pairs of texts."""
        texts = [sample for sample in self.samples if is_text(sample)]
        return [text if isinstance(text, str) else tuple(text) for text in texts]

    @property
    def numbers(self) -> list[Any]:
        """Samples that are token ids or vectors."""
        return [sample for sample in self.samples if not is_text(sample)]

    @property
    def token_ids(self) -> list[list[int]]:
        """Samples of a model that takes token ids alone, a sequence each."""
        return [[*map(int, sample)] for sample in self.numbers]


NO_WISHES = Wishes()


def is_text(sample: Any) -> bool:
    """True for a text or a pair of texts."""
    if isinstance(sample, tuple | list):
        return any(isinstance(part, str) for part in sample)
    return isinstance(sample, str)
