"""V2's bodies as types: what a request is checked against, and what the OpenAPI document shows."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from addnorm.service.engine.manifest import Pooling
from addnorm.service.wire.codec.validation import Strict
from addnorm.service.wire.texts.texts import PROMPT_NAME

EXAMPLE: dict[str, Any] = {
    "id": "1",
    "inputs": [
        {"name": "input_ids", "shape": [1, 5], "datatype": "INT64", "data": [1, 3, 4, 0, 0]},
        {"name": "attention_mask", "shape": [1, 5], "datatype": "INT64", "data": [1, 1, 1, 0, 0]},
    ],
    "outputs": [{"name": "activations"}],
}
EXAMPLES: dict[str, Any] = {
    "activations of a padded grid": {"value": EXAMPLE},
    "a vector per sequence": {
        "value": {
            "inputs": EXAMPLE["inputs"],
            "outputs": [{"name": "pooled"}],
            "parameters": {"pooling": "mean", "normalize": True},
        }
    },
    "a tensor of texts": {
        "value": {
            "inputs": [
                {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["Pads are dropped."]}
            ]
        }
    },
}


class _Open(BaseModel):
    """The caller's own keys are accepted and have no effect."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)


class InputParameters(_Open):
    binary_data_size: int | None = Field(
        None, ge=0, description="Bytes of this tensor after the JSON."
    )


class InputTensor(Strict):
    name: str
    shape: list[Annotated[int, Field(ge=1, le=2**31)]] = Field(
        min_length=1,
        max_length=3,
        description="[batch, seq]. For texts [batch], or [batch, 2] for pairs. For inputs"
        " [batch, seq, width].",
    )
    datatype: str = Field(
        description="input_ids and token_type_ids: INT64, INT32. attention_mask: INT64, INT32,"
        " UINT8, BOOL, FP32. inputs, of models that take vectors: FP32. A tensor of another name"
        " that stands alone has texts: BYTES."
    )
    parameters: InputParameters = InputParameters(binary_data_size=None)
    data: list[Any] | None = Field(None, description="Row-major, flat or nested.")


class OutputParameters(_Open):
    binary_data: bool | None = Field(
        None, description="Whether this output goes out as bytes after the JSON."
    )


class OutputTensor(Strict):
    name: str
    parameters: OutputParameters = OutputParameters(binary_data=None)


class Parameters(_Open):
    timeout: int = Field(
        0, ge=0, le=10**12, description="The deadline, in microseconds. 0: the server's."
    )
    binary_data_output: bool = Field(
        False, description="Whether outputs that do not say go out as bytes."
    )
    pooling: Pooling | None = Field(
        None, description="How `pooled` is made; by default as the bundle says."
    )
    normalize: bool | None = Field(
        None,
        description="Whether `pooled` vectors are scaled to length 1; by default those of texts as"
        " the bundle says, others not.",
    )
    truncate: bool | None = Field(
        None, description="Whether texts that are too long are cut, instead of rejected."
    )
    prompt_name: str | None = PROMPT_NAME
    precision: str | None = Field(
        None, description="fp32, fp16 or int8, as the model has; by default as the bundle says."
    )


class V2InferRequest(Strict):
    id: str | None = Field(None, description="Comes back in the answer.")
    model_name: str | None = Field(
        None, description="KServe's client repeats the path's name here."
    )
    parameters: Parameters = Parameters.model_validate({})
    inputs: Annotated[list[InputTensor], Field(fail_fast=True)]
    outputs: Annotated[list[OutputTensor], Field(fail_fast=True)] | None = Field(
        None, description="All outputs by default, answered in this order."
    )


class BinarySize(BaseModel):
    binary_data_size: int


class AnswerTensor(BaseModel):
    """`data`, or `parameters` and the bytes after the JSON."""

    name: str
    datatype: str
    shape: list[int]
    parameters: BinarySize | None = None
    data: list[float] | None = Field(None, description="Row-major and flat; zeros at pads.")


class V2InferResponse(BaseModel):
    id: str | None = None
    model_name: str
    model_version: str
    outputs: list[AnswerTensor]
