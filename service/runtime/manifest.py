"""What stands in the manifest of a bundle. Knows no files."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

FORMAT = 4
Pooling = Literal["mean", "first", "last", "max", "weighted_mean", "mean_sqrt"]
Pick = Literal["every"] | Pooling
Precision = Literal["fp32", "fp16", "int8"]
InputType = Literal["query", "document"]
Task = Literal[
    "embed", "rerank", "classify", "tag", "fill_mask", "sparse", "multi_vector", "complete"
]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)


class File(_Part):
    sha256: str
    num_bytes: int


class Limits(_Part):
    max_positions: int = Field(description="Real tokens in a sequence.")
    vocab_size: int = Field(description="Token ids are below it.")
    type_vocab_size: int = Field(
        1, description="Token type ids are below it. 1: the model takes none."
    )
    # the default is for bundles without a tokenizer, which take no texts
    max_text_tokens: int = Field(
        default_factory=lambda given: given["max_positions"],
        description=(
            "Tokens of a text, special tokens included: what the model's authors cut texts to."
        ),
    )


class Head(_Part):
    """A graph that makes an output of rows: of every token's, or of one picked for a sequence."""

    pick: Pick
    width: int


class Int8(_Part):
    """What the int8 graph needs of onnxruntime."""

    operators: tuple[str, ...] = ()  # of com.microsoft, beside those of ONNX
    # sums of two products fit 16 bits, so the fast kernels of processors without VNNI are exact
    fits_16_bits: bool = False


class InputRules(_Part):
    """How the authors of vectors for each token treat texts of one input type."""

    prompt_name: str | None = None
    max_tokens: int | None = None  # what they cut these texts to; None: max_text_tokens
    skipped_ids: tuple[int, ...] = ()  # tokens whose vectors they leave out


class Manifest(_Part):
    """What the server needs to know about a bundle, and where the bundle came from."""

    format: int
    name: str
    version: int
    created: str  # ISO 8601, UTC
    layout: Literal["packed", "padded"]
    config: dict[str, Any]  # the model's shape, in the exporter's words
    d_model: int
    n_norms: int
    limits: Limits
    precisions: dict[str, str]  # name -> graph file
    int8: Int8 = Int8()
    heads: dict[str, Head]  # by output
    labels: tuple[str, ...] | None  # of the logits, in order; None: they have no names
    multi_label: bool = (
        False  # whether several labels of one text may be true: sigmoid, not softmax
    )
    default_precision: str
    pooling: Pooling
    normalize: bool  # whether the authors normalize their vectors; responses do when asked to
    input_types: dict[InputType, InputRules] = {}  # of models that tell queries from documents
    prompts: dict[str, str] = {}  # name -> what is put before each text, if asked for
    default_prompt_name: str | None = None  # of the prompt where none is asked for
    special_tokens: dict[str, str] = {}  # eos_token, bos_token, pad_token: those its authors name
    # of each dimension of its pooled vectors, the lowest and the highest: int8 vectors need them
    vector_ranges: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    texts_have_types: bool = True  # false: its authors' tokenizer gives every token type 0
    source: dict[str, Any]  # preset and seed, or checkpoint or module and its sha256
    opset: int
    versions: dict[str, str]  # torch, onnxruntime
    files: dict[str, File]
