"""The manifest of a bundle, and the part of its certificate that the server reads. Knows no
files."""

import math
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Annotated, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

FORMAT = 4


def _check_time(value: str) -> str:
    try:
        datetime.fromisoformat(value).timestamp()
    except (ValueError, OverflowError, OSError):
        raise ValueError("it is not a time in ISO 8601") from None
    return value


Time = Annotated[str, AfterValidator(_check_time)]
Ids = NDArray[np.int64]
Size = Annotated[int, Field(ge=1, lt=2**31)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]  # of a file, a model
GraphFile = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,122}\.onnx$")]
Graph = Annotated[str, Field(pattern=r"^(fp32|fp16|int8)$")]
Made = Annotated[str, Field(pattern=r"^(logits|pooled|token_vectors|token_weights)$")]  # by a head
Pooling = Literal["mean", "first", "last", "max", "weighted_mean", "mean_sqrt"]
Pick = Literal["every"] | Pooling
# What is kept of a sequence: its tokens' rows, what a pooling makes of them, or their vectors. Of
# rows that lie on a device also the activations alone, in float32 or float16.
RowKind = Pick | Literal["token_vectors", "activations", "halves"]
Precision = Literal["fp32", "fp16", "int8"]
Ranges = tuple[tuple[float, ...], tuple[float, ...]]  # lowest and highest of each dimension
InputType = Literal["query", "document"]
# fields of answers beside outputs, in JSON and in safetensors: no tensor is named so
ANSWER_FIELDS = ("model", "version", "usage", "lengths")
SPANS = ("start", "end")  # labels of question answering: of the logits of each token
Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]
ENTAILMENT = "entail"  # how the name of the label begins, in any case
Task = Literal[
    "embed",
    "rerank",
    "classify",
    "decide",
    "tag",
    "fill_mask",
    "sparse",
    "multi_vector",
    "complete",
    "extract",
]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)


class File(_Part):
    sha256: str
    num_bytes: int


class Limits(_Part):
    max_positions: Size = Field(description="Real tokens in a sequence.")
    vocab_size: Annotated[int, Field(ge=0, lt=2**31)] = Field(
        description="Token ids are below it. 0: the model takes vectors."
    )
    type_vocab_size: Size = Field(
        1, description="Token type ids are below it. 1: the model takes none."
    )
    pad_id: Annotated[int, Field(ge=0)] | None = Field(
        None,
        description=(
            "An id that the model takes for a pad wherever it stands: no real token may have it."
        ),
    )
    input_width: Size | None = Field(
        None,
        description="Numbers of the vector that stands for a token, of models that take `inputs`.",
    )
    # the default is for bundles without a tokenizer, which take no texts
    max_text_tokens: Size = Field(
        default_factory=lambda values: values["max_positions"],
        description=(
            "Tokens of a text, special tokens included: what the model's authors cut texts to."
        ),
    )

    def without_pads(self, ids: Ids) -> Ids:
        """Random ids, with another id in place of `pad_id`."""
        if self.pad_id is None:
            return ids
        return np.where(ids == self.pad_id, (self.pad_id + 1) % self.vocab_size, ids)


class Head(_Part):
    """A graph that makes an output of rows: of every token's, or of one picked for a sequence."""

    pick: Pick
    width: Size


class AnyHead(Protocol):
    """A head of a manifest, or of a Config."""

    @property
    def pick(self) -> Pick: ...
    @property
    def width(self) -> int: ...


def tasks_of(
    heads: Mapping[str, AnyHead], labels: Sequence[str] | None, vocab_size: int, is_causal: bool
) -> tuple[Task, ...]:
    """A model's tasks, by its heads. Every model has pooled vectors, but only those without logits
    are made for them, and those whose logits no task reads."""
    tasks: tuple[Task, ...] = ("multi_vector",) if "token_vectors" in heads else ()
    if "token_weights" in heads:
        tasks = (*tasks, "sparse")
    logits = heads.get("logits")
    if logits is None or tuple(labels or ()) == SPANS:
        return (*tasks, "embed")
    if logits.pick != "every":
        if logits.width == 1:
            return (*tasks, "rerank", "classify", "decide")
        can_entail = any(label.lower().startswith(ENTAILMENT) for label in labels or ())
        return (*tasks, "classify", "decide") if can_entail else (*tasks, "classify")
    if logits.width != vocab_size or labels:  # words of a vocabulary have no labels
        return (*tasks, "tag")
    return (*tasks, "complete") if is_causal else (*tasks, "fill_mask", "sparse")


def compares_tokens(heads: Collection[str], input_types: Collection[InputType]) -> bool:
    """A model with these tells queries from documents, and scores the vectors of their tokens."""
    return "token_vectors" in heads and len(input_types) == 2


class Int8(_Part):
    """The int8 graph's needs of onnxruntime."""

    operators: tuple[str, ...] = ()  # of com.microsoft, beside those of ONNX
    # sums of two products fit 16 bits, so the fast kernels of processors without VNNI are exact
    fits_16_bits: bool = False
    # matrices that stayed float32, so that this share of the nearest texts is found
    float_weights: tuple[str, ...] = ()
    keep_recall: float | None = Field(None, gt=0, le=1)


class Clusters(_Part):
    """The joining of a text's vectors to about one of `factor`: see `clusters.py`."""

    factor: Annotated[float, Field(ge=1, allow_inf_nan=False)]
    num_protected: Annotated[int, Field(ge=0)] = 1  # first vectors, which stay as they are
    normalize: bool = True  # whether the joined vectors have length 1


class InputRules(_Part):
    """The treatment of texts of one input type, as the authors of vectors for each token do it."""

    prompt_name: str | None = None
    max_tokens: Size | None = None  # what they cut these texts to; None: max_text_tokens
    # ColBERT's expansion of queries: texts of fewer tokens are filled up with this id
    min_tokens: Size | None = None
    fill_id: Annotated[int, Field(ge=0)] | None = None
    skipped_ids: tuple[int, ...] = ()  # tokens whose vectors they leave out
    skips_first: bool = False  # whether they leave out the vector of the first token too
    clusters: Clusters | None = None  # of the vectors that are left
    # whether a sparse vector has the weights of its tokens, without special tokens, and no graph
    # runs
    inference_free: bool = False

    @property
    def has_tokenizer(self) -> bool:
        """Texts of this type are not read as others are."""
        is_plain = self.max_tokens is None and self.fill_id is None
        return self.inference_free or not is_plain


class WindowRule(BaseModel):
    """The way to read texts that are longer than the model takes: in windows."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    overlap: int | None = Field(
        None,
        ge=0,
        lt=2**31,
        description="Tokens that two neighbouring windows share: a phrase of up to so many stands"
        " whole in one of them. By default 64, or half a window where that is less.",
    )
    take: Literal["max", "mean"] | None = Field(
        None,
        description="`max` answers with the one window in which the deciding label scores highest,"
        " of independent labels with each label's own; `mean` with the mean of all windows,"
        " weighted by tokens. By default `max` for one or two labels, for independent ones, and"
        " where `label` is set.",
    )
    label: str | None = Field(
        None, description="The label that decides for `max`; of two labels, by default the second."
    )

    def over(self, other: "WindowRule | None") -> "WindowRule":
        """This rule; its missing parts are those of another."""
        return other.model_copy(update=self.model_dump(exclude_none=True)) if other else self


class OwnTensor(_Part):
    """One that a module as it is answers with: of every token, or of each sequence.

    row_shape: of its numbers for one token or one sequence: `[width]`, or `[]` where that is one
    number without an axis. None in older bundles, whose tensors are parts of the output `output`.
    """

    name: str
    of: Literal["token", "sequence"]
    width: Size
    row_shape: Annotated[tuple[Size, ...], Field(max_length=1)] | None = None

    @property
    def output(self) -> str:
        """The output of requests that has it, where no head of its name makes one."""
        return "output" if self.row_shape is None else self.name

    @property
    def shape(self) -> list[int]:
        """The shape of the tensor; -1 where the request decides."""
        row = (self.width,) if self.row_shape is None else self.row_shape
        return [*[-1] * (2 if self.of == "token" else 1), *row]

    def as_head(self) -> Head:
        """The head that outputs of its name read: its columns of the rows that the graph makes."""
        return Head(pick="every" if self.of == "token" else "last", width=self.width)


class Extraction(_Part):
    """The way in which a model finds names of any labels, as the package gliner has it. A sequence
    has the labels, each behind `label_token`, then `text_token`, then the words of the text.

    kind: each span of up to `max_width` words has a logit for each label, or each word has three:
    that a name begins, that it ends, that the word is within one.
    """

    kind: Literal["spans", "tokens"]
    max_width: Size  # numbers for a word and a label
    max_words: Size  # of a text
    label_token: str
    text_token: str
    label_id: Annotated[int, Field(ge=0)]  # of label_token
    label_offset: Literal[0, 1]  # from it to the token whose row stands for the label


class Manifest(_Part):
    """All that the server needs to know about a bundle, and where the bundle came from."""

    format: int
    name: Name
    version: int
    created: Time | None = None  # of older bundles; the certificate of newer ones has it
    layout: Literal["packed", "padded"]
    config: dict[str, Any]  # the model's shape, in the exporter's words
    d_model: Size  # numbers of a row; of a module as it is, those of its tensors
    n_norms: Annotated[int, Field(ge=0, lt=2**31)]
    # of a module that is served as it is: what it answers with, side by side in a row
    as_it_is: tuple[OwnTensor, ...] | None = None
    limits: Limits
    precisions: dict[Graph, GraphFile]  # name -> graph file
    int8: Int8 = Int8()
    # whose attention's scores lay so far apart that the exporter clipped them
    clipped_layers: tuple[int, ...] = ()
    heads: dict[Made, Head]  # by output
    labels: tuple[str, ...] | None  # of the logits, in order; None: they have no names
    # whether several labels of one text may be true: sigmoid, not softmax
    multi_label: bool = False
    regression: bool = False  # whether the logits are the answer: no sigmoid, no softmax
    default_precision: str
    pooling: Pooling
    normalize: bool  # whether the authors normalize their vectors; responses do when asked to
    similarity: Similarity = "cosine"  # of two vectors, as the authors compare them
    mean_max_sim: bool = False  # whether MaxSim is divided by the number of a query's vectors
    # of logits, before log(1 + x) makes sparse vectors of them
    sparse_activation: Literal["relu", "log1p_relu"] = "relu"
    # of models with a weight for each token: those that sparse vectors leave out
    unweighted_ids: tuple[int, ...] = ()
    input_types: dict[InputType, InputRules] = {}  # of models that tell queries from documents
    # of texts of no type, where one type is inference-free; None: they are rejected
    default_input_type: InputType | None = "document"
    prompts: dict[str, str] = {}  # name -> what is put before each text, if asked for
    default_prompt_name: str | None = None  # of the prompt where none is asked for
    special_tokens: dict[str, str] = {}  # eos_token, bos_token, pad_token: those its authors name
    # of each dimension of its pooled vectors, the lowest and the highest: int8 vectors need them
    vector_ranges: Ranges | None = None
    token_vector_ranges: Ranges | None = None  # the same of the vectors of a document's tokens
    texts_have_types: bool = True  # false: its authors' tokenizer gives every token type 0
    split_special_tokens: bool = False  # whether those that stand in texts are texts like others
    # of static vectors: ids that are left out of texts. A text may have no other, or be empty: its
    # vector is 0. None: a text without tokens is rejected
    left_out_ids: tuple[int, ...] | None = None
    extraction: Extraction | None = None  # of models that find names of any labels
    # how texts are read that are longer than it takes; None: as request and route say
    windows: WindowRule | None = None
    # of a reranker that reads a pair as one text: what stands before, between and behind the two
    pair_template: tuple[str, str, str] | None = None
    source: dict[str, Any]  # preset and seed, or checkpoint or module and its sha256
    opset: Size
    versions: dict[str, str]  # torch, onnxruntime
    files: dict[Name, File]

    @property
    def score_function(self) -> Literal["sigmoid", "none"] | None:
        """The authors' function from logits to scores; None: chosen by the number of logits."""
        if self.regression:
            return "none"
        return "sigmoid" if self.multi_label else None

    @property
    def is_inference_free(self) -> bool:
        """Its texts of one input type run no graph."""
        return any(rules.inference_free for rules in self.input_types.values())

    @property
    def speed_facts(self) -> tuple[Any, ...]:
        """The parts that decide how long a run takes, whatever the weights: the config; of a module
        as it is, which has an empty one, its tensors, its limits and the sizes of its graphs."""
        if self.as_it_is is None:
            return (self.config,)
        sizes = {name: self.files[file].num_bytes for name, file in self.precisions.items()}
        return self.as_it_is, self.limits, sizes

    def misfit(self) -> str | None:
        """The first contradiction between its parts. None if all fit."""
        if self.default_precision not in self.precisions:
            return f"default precision {self.default_precision[:100]!r}, but no such graph"
        # the shape stands in the config too
        shape: dict[str, Any] = {**self.limits.model_dump(), "d_model": self.d_model}
        for name in sorted(shape.keys() & self.config.keys()):
            if (value := self.config[name]) != shape[name]:
                return f"{name} {shape[name]}, but {value!r:.100} in its config"
        if self.as_it_is:
            if self.extraction:
                return "an extraction, which no module as it is has"
            if not {*self.precisions} <= {"fp32", "int8"}:
                return "precisions that no module as it is has"
            tensor_heads = {tensor.name: tensor.as_head() for tensor in self.as_it_is}
            has_rows = [*tensor_heads] == ["activations"]  # which a head of its own file can read
            extra_heads = {
                name for name, head in self.heads.items() if tensor_heads.get(name) != head
            }
            if extra_heads and not (has_rows and extra_heads == {"logits"}):
                return f"heads {sorted(extra_heads)} that its graph does not make"
            if sum(tensor.width for tensor in self.as_it_is) != self.d_model:
                return f"tensors that have not {self.d_model} numbers together"
            if len(tensor_heads) < len(self.as_it_is):
                return "two tensors of one name"
            for tensor in self.as_it_is:
                if tensor.output in ANSWER_FIELDS:
                    return f"a tensor {tensor.name!r}, as answers name another field"
                if tensor.row_shape is not None and math.prod(tensor.row_shape) != tensor.width:
                    return f"a tensor {tensor.name[:100]!r} of another width than its row_shape"
        else:
            if misfit := self._misfit_of_config():
                return misfit
        return self._misfit_of_texts()

    def _misfit_of_config(self) -> str | None:
        """The first impossible number in the shape of Addnorm's transformer. None if all fit."""
        for name, limit in (("n_layers", self.n_norms), ("n_heads", self.d_model)):
            value = self.config.get(name)
            if type(value) is not int or not 1 <= value <= limit:
                return f"{name} {value!r:.100} in its config: 1 to {limit} is possible"
        if type(value := self.config.get("causal")) is not bool:
            return f"causal {value!r:.100} in its config: true or false is possible"
        return None

    def _misfit_of_texts(self) -> str | None:
        """The first contradiction between prompts, labels and ranges. None if all fit."""
        prompts = [
            self.default_prompt_name,
            *(rule.prompt_name for rule in self.input_types.values()),
        ]
        for prompt in prompts:
            if prompt is not None and prompt not in self.prompts:
                return f"the prompt {prompt[:100]!r} is named, but not there"
        logits = self.heads.get("logits")
        if self.labels is not None and logits and len(self.labels) != logits.width:
            return f"{len(self.labels)} labels for {logits.width} logits"
        if (rule := self.windows) and rule.label not in (None, *(self.labels or ())):
            return f"the label {rule.label!r:.100} decides, but is not there"
        for output, name in (("pooled", "vector_ranges"), ("token_vectors", "token_vector_ranges")):
            if (ranges := getattr(self, name)) is None:
                continue
            head, (lowest, highest) = self.heads.get(output), ranges
            width, pairs = head.width if head else self.d_model, zip(lowest, highest, strict=False)
            if not len(lowest) == len(highest) == width:
                return f"{name} that are not of {width} dimensions"
            if not all(-math.inf < a <= b < math.inf for a, b in pairs):
                return f"{name} that are not a lowest and a highest number each"
        return None


class KnownAnswer(_Part):
    """A sequence of the certificate, and its last row."""

    input_ids: tuple[int, ...] = ()
    inputs: tuple[tuple[float, ...], ...] = ()  # of a model that takes vectors
    token_type_ids: tuple[int, ...] | None = None
    activations: tuple[float, ...]


class Certified(_Part):
    """The part of a certificate that the server needs."""

    known_answer: dict[str, KnownAnswer]  # by precision
    # by precision, output and length: see `known_answers.py`; none in those of older exporters
    known_digests: dict[str, dict[str, dict[str, str]]] = {}
    # of a graph as its authors wrote it: tokens of a sequence -> bytes that its run holds at its
    # peak, measured. Not in the manifest, whose sha256 is the same for two exports of one model
    peak_bytes: dict[Size, Annotated[int, Field(ge=0, lt=2**53)]] = {}
    created: Time | None = None  # ISO 8601, UTC

    def misfit(self, manifest: Manifest) -> str | None:
        """The first part that is missing, or an answer that the model cannot have. None if all
        fit."""
        if self.created is None and manifest.created is None:
            return "it does not say when the bundle was created"
        peaks = sorted(self.peak_bytes.items())
        if any(next_peak < peak for (_, peak), (_, next_peak) in pairwise(peaks)):
            return "peak_bytes that do not grow with the length"
        for precision in manifest.precisions:
            answer, limits = self.known_answer.get(precision), manifest.limits
            if answer is None:
                return f"it has no known answer of {precision}"
            length, types = len(answer.inputs or answer.input_ids), answer.token_type_ids
            if (
                not 1 <= length <= limits.max_positions
                or len(answer.activations) != manifest.d_model
            ):
                return f"the known answer of {precision} has another shape than the model"
            are_types = types is None or (
                limits.type_vocab_size > 1
                and len(types) == length
                and _are_below(types, limits.type_vocab_size)
            )
            if not _are_below(answer.input_ids, limits.vocab_size) or not are_types:
                return f"the known answer of {precision} has ids that the model lacks"
            if {len(vector) for vector in answer.inputs} - {limits.input_width}:
                return f"the known answer of {precision} has vectors of another width"
        return None


def _are_below(ids: tuple[int, ...], limit: int) -> bool:
    return all(0 <= token < limit for token in ids)
