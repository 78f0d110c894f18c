"""The native route of names of any labels: those in each text, in the order sent."""

from typing import Any

from pydantic import BaseModel, Field

from addnorm.service.asking.ask import Ask
from addnorm.service.dialects.native.native_infer import Usage, usage
from addnorm.service.engine.manifest import Precision
from addnorm.service.wire.codec.decoding import Tools
from addnorm.service.wire.codec.payload import Encode
from addnorm.service.wire.route import Route
from addnorm.service.wire.texts import extraction
from addnorm.service.wire.texts.extraction import ExtractOptions
from addnorm.service.wire.texts.json_answers import JsonAnswer
from addnorm.service.wire.texts.sequences import Strings
from addnorm.service.wire.texts.texts import PRECISION, TextsToTokenize


class ExtractRequest(ExtractOptions):
    """Texts, for models that find names of any labels."""

    model: str | None = Field(
        None, description="`name` or `name/version`; by default the one model made for this."
    )
    texts: Strings
    precision: Precision | None = PRECISION


class FoundName(BaseModel):
    label: str
    score: float
    start: int = Field(description="First character.")
    end: int = Field(description="One past the last character.")
    text: str


class ExtractResponse(BaseModel):
    model: str
    version: str
    results: list[list[FoundName]] = Field(description="Of each text, in its order.")
    usage: Usage


async def extract(body: ExtractRequest, ask: Ask, tools: Tools) -> Encode:
    """InvalidInput names the field."""
    model = ask.find_model(tools.models, body.model, "extract")
    texts = TextsToTokenize("texts", body.texts, False, model, can_cut=False)
    ask.precision = body.precision or ask.precision
    finish = await extraction.extract(ask, tools, texts, body)

    def answer(ask: Ask) -> dict[str, Any]:
        return {
            "model": ask.model.answered_name,
            "version": str(ask.model.bundle.manifest.version),
            "results": finish(ask),
            "usage": usage(ask),
        }

    return JsonAnswer(answer)


ROUTE = Route(
    path="/v1/extract",
    name="extract",
    summary="Names of any labels, with their characters",
    body=ExtractRequest,
    decode=extract,
    is_ours=True,
    response=ExtractResponse,
    examples={
        "a text": {
            "model": "names",
            "texts": ["Ada lives in London."],
            "labels": ["person", "city"],
        }
    },
)
