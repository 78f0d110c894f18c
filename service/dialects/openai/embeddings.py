"""OpenAI's embeddings under /v1: pooled vectors of token ids, and of texts.

Source: OpenAI's API reference and its Python SDK, which asks for base64 unless told otherwise.
"""

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from addnorm.service.asking.ask import Ask
from addnorm.service.engine.manifest import Precision
from addnorm.service.engine.outputs import Pooled
from addnorm.service.engine.outputs.values import VectorDType
from addnorm.service.errors import InvalidInput
from addnorm.service.wire.codec.decoding import Tools
from addnorm.service.wire.codec.payload import Encode
from addnorm.service.wire.codec.validation import Strict, agreed
from addnorm.service.wire.route import Route
from addnorm.service.wire.texts.json_answers import JsonAnswer, in_base64, pooled, usage
from addnorm.service.wire.texts.sequences import (
    OTHER_VOCABULARY,
    Sequences,
    SequencesToRead,
)
from addnorm.service.wire.texts.texts import PROMPT_NAME, Truncation, check_limit

InputType = Literal["query", "document", "passage", "text", "search_query", "search_document"]
JinaTask = Literal[
    "retrieval.query", "retrieval.passage", "text-matching", "classification", "separation"
]
JinaType = Literal["float", "base64", "binary", "ubinary"]
OneJinaType = Annotated[list[JinaType], Field(min_length=1, max_length=1)]
# what other words for a number's type mean; base64 says how the numbers are written
DTYPES: dict[str, VectorDType | None] = {"float": "float32", "base64": None}


class EmbeddingsFields(Strict):
    """Fields that others than OpenAI have on its path: vLLM's, Jina's, Voyage's and NVIDIA's. They
    mean what OpenAI's and ours do."""

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


# LangChain sends texts as ids of OpenAI's own vocabulary unless told not to
HINT = (
    f"{OTHER_VOCABULARY}: in LangChain's OpenAIEmbeddings set check_embedding_ctx_length=False,"
    " which sends texts"
)


class EmbeddingsRequest(EmbeddingsFields):
    """OpenAI's fields, others', and ours: `dtype`, `truncate`, `precision`, `prompt_name`."""

    input: Sequences = Field(
        description="A text, token ids of the model's own vocabulary with its special tokens, or a"
        " list of such. An empty text is its special tokens alone. Ids that do not begin and end"
        " with the special tokens are rejected, unless the model has no tokenizer."
    )
    model: str | None = Field(
        None,
        description="`name` or `name/version`; the latest version by default, or the pinned one.",
    )
    encoding_format: Literal["float", "base64"] | None = Field(
        None,
        description="Numbers, which is the default, or base64 of their bytes, which is quicker:"
        " little-endian float32, or a byte for each number of a smaller dtype.",
    )
    precision: Precision | None = Field(
        None, description="One the model has; by default as it says."
    )
    prompt_name: str | None = PROMPT_NAME


TOKENS = {"model": "notebook", "input": [[1, 3, 4], [5]], "dimensions": 3}
EXAMPLES: dict[str, Any] = {
    "token ids": TOKENS,
    "the same as base64": {**TOKENS, "encoding_format": "base64"},
    "texts": {
        "model": "all-minilm-l6-v2",
        "input": ["Pads are dropped.", "Pads are never computed."],
    },
}


async def embed(body: EmbeddingsRequest, ask: Ask, tools: Tools) -> Encode:
    """InvalidInput names the field."""
    model, prompt_name = ask.find_model_and_prompt(
        tools.models, ask.names.get("model", body.model), body.prompt_name, "embed"
    )
    # the vectors
    jinas = body.embedding_type[0] if isinstance(body.embedding_type, list) else body.embedding_type
    dtypes: dict[str, Any] = {
        "dtype": body.dtype,
        "output_dtype": body.output_dtype and DTYPES.get(body.output_dtype, body.output_dtype),
        "embedding_type": jinas and DTYPES.get(jinas, jinas),
    }
    dimensions = agreed(dimensions=body.dimensions, output_dimension=body.output_dimension)
    normalize = model.bundle.manifest.normalize if body.normalized is None else body.normalized
    numbers: tuple[VectorDType, ...] = (agreed(**dtypes) or "float32",)
    output = Pooled(normalize=normalize, dimensions=dimensions, dtypes=numbers)
    ask.outputs, ask.precision = (output,), body.precision or ask.precision
    ask.binary = (body.encoding_format or jinas) == "base64"
    # the sequences
    check_limit("truncate_prompt_tokens", body.truncate_prompt_tokens, model, whole=-1)
    truncate = agreed(
        truncate=None if body.truncate is None else body.truncate not in (False, "NONE"),
        truncation=body.truncation,
        truncate_prompt_tokens=None if body.truncate_prompt_tokens is None else True,
    )
    if body.input_type is not None and body.task is not None:
        raise InvalidInput("task and input_type are both set: send one of them", param="task")
    kind = body.task or body.input_type
    sent = SequencesToRead(
        "input",
        body.input,
        tools.texts.cuts(truncate, texts=body.input),
        model,
        prompt_name,
        left=body.truncate == "START",
        keeps_prompt=True,
        hint=HINT,
        input_type=None if kind is None else ("task" if body.task else "input_type", kind),
    )
    ask.field, ask.hint = "input", HINT
    ask.batch, ask.padding = await sent.read(ask, tools)
    return JsonAnswer(in_base64 if ask.binary else pooled, words=_words)


def _words(ask: Ask, vectors: Any) -> dict[str, Any]:
    return {
        "id": ask.id,
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": vector}
            for index, vector in enumerate(vectors)
        ],
        "model": ask.model.answered_name,
        "usage": usage(ask),
    }


ROUTES = tuple(
    Route(
        path=path,
        name=name,
        summary="Embeddings, as OpenAI's clients ask for them",
        body=EmbeddingsRequest,
        decode=embed,
        examples=EXAMPLES,
    )
    for path, name in (
        ("/v1/embeddings", "embeddings"),
        ("/embeddings", "root_embeddings"),
    )
)
OPENAIS = ROUTES[0]
# The path names the model as a deployment, or begins with /openai. Its name wins: Azure's clients
# repeat it in the body, or the name of a model.
OF_AZURE = (
    replace(OPENAIS, path="/openai/v1/embeddings", name="azure_v1_embeddings"),
    replace(
        OPENAIS,
        path="/openai/deployments/{model:path}/embeddings",
        name="azure_embeddings",
        examples={"token ids": TOKENS},
    ),
)
