"""Google's Vertex AI: the instances of a body become one request, and its results are shared out
to the predictions.

Source: text-embeddings-inference's router, whose instances are bodies of its own routes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, Field

from addnorm.service.asking.ask import Ask
from addnorm.service.dialects.tei import tei_tasks
from addnorm.service.dialects.tei.tei_about import described
from addnorm.service.dialects.tei.tei_schema import (
    PredictInputs,
    TeiEmbedRequest,
    TeiPredictRequest,
    TeiRequest,
    TeiRerankRequest,
)
from addnorm.service.errors import EmptyInput, InvalidInput
from addnorm.service.wire.codec.decoding import Tools
from addnorm.service.wire.codec.shown import shown
from addnorm.service.wire.codec.validation import Strict, fit
from addnorm.service.wire.route import Route
from addnorm.service.wire.texts.json_answers import JsonAnswer, Shape
from addnorm.service.wire.texts.texts import check_size

Instance = TypeVar("Instance", bound=TeiRequest)
OWN = {"inputs", "query", "texts", "top_n", "return_text"}  # fields that may differ


class VertexRequest(Strict):
    """Instances whose options differ are rejected: they would not be one request."""

    instances: Annotated[list[dict[str, Any]], Field(fail_fast=True)] = Field(
        description="Bodies of /rerank if the first has `query`, else of what the server's model is"
        " made for: /embed, /embed_sparse or /predict."
    )
    parameters: Any = Field(None, description="Has no effect.")


class Instances(BaseModel, Generic[Instance]):
    instances: Annotated[list[Instance], Field(fail_fast=True)]


async def predict(body: VertexRequest, ask: Ask, tools: Tools) -> JsonAnswer:
    if not body.instances:
        raise EmptyInput("instances is empty: send at least one", param="instances")
    named = body.instances[0].get("model")
    if not isinstance(named, str) or not named:  # of another type it is rejected with the body
        named = None
    tasks = described(tools.models, named).bundle.tasks
    if "query" in body.instances[0]:
        rerankings = await _instances(TeiRerankRequest, body, ask, tools)
        encoding = await tei_tasks.rerank_each(rerankings, ask, tools)
        return replace(encoding, shape=partial(_predictions, encoding.shape, None))
    if "embed" in tasks or "sparse" in tasks:
        embed = tei_tasks.embed if "embed" in tasks else tei_tasks.embed_sparse
        embeddings = await _instances(TeiEmbedRequest, body, ask, tools)
        _check_kind(embeddings)
        inputs = [each for one in embeddings for each in one.inputs]
        whole = embeddings[0].model_copy(update={"inputs": inputs})
        encoding = await embed(whole, ask, tools)
        share = partial(_shared, [len(one.inputs) for one in embeddings])
    else:
        predictions = await _instances(TeiPredictRequest, body, ask, tools)
        texts = [one.inputs for one in predictions]
        joined = PredictInputs([text for one in texts for text in one.texts], is_batch=True)
        whole_batch = predictions[0].model_copy(update={"inputs": joined})
        encoding = await tei_tasks.predict(whole_batch, ask, tools)
        share = partial(_shared, [len(one.texts) if one.is_batch else None for one in texts])
    return replace(encoding, shape=partial(_predictions, encoding.shape, share))


async def _instances(
    instance: type[Instance], body: VertexRequest, ask: Ask, tools: Tools
) -> list[Instance]:
    """All as one type, and with the same options. InvalidInput names what differs."""
    check_size("instances", len(body.instances), "instances", tools.texts.settings.max_sequences)
    bodies, num_bytes, value = tools.bodies, ask.num_body_bytes, {"instances": body.instances}
    kind = Instances[instance]  # type: ignore[valid-type]
    fitted = await bodies.read(num_bytes, ask, fit, kind, value, bodies.ignored.add)
    instances: list[Instance] = fitted.instances
    for field in (name for name in instance.model_fields if name not in OWN):
        first, *others = (getattr(one, field) for one in instances)
        for index, other in enumerate(others, 1):
            if other != first:
                raise InvalidInput(
                    f"instances[{index}] has {field} {shown(other)}, instances[0] has"
                    f" {shown(first)}: send instances with other options in a request of their own",
                    param="instances",
                )
    return instances


def _check_kind(embeddings: Sequence[TeiEmbedRequest]) -> None:
    """InvalidInput if some have texts and others token ids."""
    kinds = [{type(each) for each in one.inputs} for one in embeddings]
    for index, kind in enumerate(kinds):
        if kind and kinds[0] and kind != kinds[0]:
            what, other = ("texts", "token ids") if str in kind else ("token ids", "texts")
            raise InvalidInput(
                f"instances[{index}] has {what}, instances[0] has {other}: send them in requests of"
                " their own",
                param="instances",
            )


def _shared(counts: Sequence[int | None], results: Any) -> Iterator[Any]:
    """The next so many results for each instance; None: one, and no list of it."""
    left = iter(results)
    for count in counts:
        yield next(left) if count is None else islice(left, count)


def _predictions(
    shape: Shape,
    share: Callable[[Any], Iterator[Any]] | None,
    ask: Ask,
) -> Any:
    results = shape(ask)
    return {"predictions": share(results) if share else results}


ROUTE = Route(
    path="/vertex",
    name="vertex_predict",
    summary="Instances of one task, as Vertex AI asks for them",
    body=VertexRequest,
    decode=predict,
    examples={"texts": {"instances": [{"inputs": "Pads are dropped."}]}},
)
