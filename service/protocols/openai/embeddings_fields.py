"""Fields of embeddings that others than OpenAI have, on OpenAI's path: vLLM's, Jina's, Voyage's and
NVIDIA's. They mean what OpenAI's and ours do."""

from typing import Annotated, Any, Literal

from pydantic import Field

from addnorm.service.errors import InvalidInput
from addnorm.service.inference.outputs.small_vectors import VectorDType
from addnorm.service.models.model import Model
from addnorm.service.protocols.codec.validation import Strict, agreed
from addnorm.service.protocols.texts.truncation import Truncation, check_limit

InputType = Literal["query", "document", "passage", "text", "search_query", "search_document"]
JinaTask = Literal[
    "retrieval.query", "retrieval.passage", "text-matching", "classification", "separation"
]


JinaType = Literal["float", "base64", "binary", "ubinary"]
OneJinaType = Annotated[list[JinaType], Field(min_length=1, max_length=1)]
# what other words for a number's type mean; base64 says how the numbers are written
DTYPES: dict[str, VectorDType | None] = {"float": "float32", "base64": None}


class EmbeddingsFields(Strict):
    dtype: VectorDType | None = Field(
        None,
        description="float32 by default; int8 and uint8 by the bundle's ranges, for vectors of all"
        " dimensions; binary and ubinary by the numbers' signs, eight dimensions a byte.",
    )
    dimensions: int | None = Field(
        None,
        ge=1,
        description="Only the first so many, scaled to length 1 where the model's vectors are."
        " Means something only of models trained for it.",
    )
    truncate: bool | Truncation | None = Field(
        None,
        description="Whether texts that are too long are cut, as the model's authors do it, instead"
        " of rejected; or which end is cut, as NVIDIA has it.",
    )
    input_type: InputType | None = Field(
        None,
        description="Puts the model's prompt of this kind before each text; none if it has none of"
        " this kind. Voyage's and NVIDIA's.",
    )
    task: JinaTask | None = Field(None, description="`input_type`, as Jina calls it.")
    truncation: bool | None = Field(None, description="`truncate`, as Voyage calls it.")
    truncate_prompt_tokens: int | None = Field(
        None, ge=-1, description="vLLM's: cuts. At least the model's limit, which -1 stands for."
    )
    output_dtype: Literal["float", "int8", "uint8", "binary", "ubinary"] | None = Field(
        None, description="`dtype`, as Voyage calls it."
    )
    output_dimension: int | None = Field(
        None, ge=1, description="`dimensions`, as Voyage calls it."
    )
    embedding_type: JinaType | OneJinaType | None = Field(
        None, description="Jina's: `encoding_format` and `dtype` in one. Also a list of one."
    )
    normalized: bool | None = Field(
        None, description="Jina's: whether vectors have length 1; by default as the bundle says."
    )

    def vector_dtype(self) -> VectorDType:
        sent = {
            "dtype": self.dtype,
            "output_dtype": self.output_dtype,
            "embedding_type": self.only_type(),
        }
        named: dict[str, Any] = {
            field: DTYPES.get(kind, kind) for field, kind in sent.items() if kind is not None
        }
        return agreed(**named) or "float32"

    def only_type(self) -> JinaType | None:
        kind = self.embedding_type
        return kind[0] if isinstance(kind, list) else kind

    def vector_dimensions(self) -> int | None:
        return agreed(dimensions=self.dimensions, output_dimension=self.output_dimension)

    def typed(self) -> tuple[str, str] | None:
        """The field that says what the texts are for, and what it says."""
        if self.input_type is not None and self.task is not None:
            raise InvalidInput("task and input_type are both set: send one of them", param="task")
        if self.task is not None:
            return "task", self.task
        return None if self.input_type is None else ("input_type", self.input_type)

    def cuts(self, model: Model) -> bool | None:
        """Whether texts that are too long are cut, where a field says so. InvalidInput if another
        length is asked for."""
        check_limit("truncate_prompt_tokens", self.truncate_prompt_tokens, model, whole=-1)
        return agreed(
            truncate=None if self.truncate is None else self.truncate not in (False, "NONE"),
            truncation=self.truncation,
            truncate_prompt_tokens=None if self.truncate_prompt_tokens is None else True,
        )
