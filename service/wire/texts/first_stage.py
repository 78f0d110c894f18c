"""A cascade's first stage: vectors of a smaller model say which documents a reranker scores."""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from addnorm.service.asking.ask import Ask
from addnorm.service.engine.batch import Batch, Padding
from addnorm.service.engine.model import Model
from addnorm.service.engine.outputs import Pooled
from addnorm.service.errors import InvalidInput
from addnorm.service.wire.codec.decoding import Tools
from addnorm.service.wire.texts.json_answers import compared
from addnorm.service.wire.texts.sequences import typed
from addnorm.service.wire.texts.texts import TextsToTokenize

TIME_SHARE = 0.5  # of the time of an ask that ends in time


async def order(name: str, pairs: TextsToTokenize, ask: Ask, tools: Tools) -> Sequence[int]:
    """The indices of pairs of one query and documents, the documents most like the query first.
    Those that the time did not suffice for keep their order, behind the others. InvalidInput for
    several queries.

    It is an ask of its own, of the same caller and deadline. A document is cut to what the first
    model takes.
    """
    tools.texts.tokenizer(pairs)
    queries = {pair[0] for pair in pairs.texts}
    if len(queries) > 1:
        raise InvalidInput(
            f"{pairs.field} are of {len(queries)} queries: the model {ask.alias.ref!r} is asked"
            " through an alias with a first stage, which is for one query",
            param=pairs.field,
        )
    first = Ask(ask.id, ask.route, ask.key, ask.started, ask.timeout_s, ask.is_callers)
    first.anew, first.max_time_s = ask.anew, TIME_SHARE * ask.max_time_s
    model, prompt = first.find_model_and_prompt(tools.models, name, None)
    documents = [pair[1] for pair in pairs.texts]
    batches = list[Batch]()
    ask.check()
    ask.stop = first.leave  # if the caller leaves
    try:
        with tools.answers.gate.admit(first):
            for kind, texts in (("query", list(queries)), ("document", documents)):
                plain = TextsToTokenize.prompted(pairs.field, texts, True, model, prompt)
                given = typed(plain, "model", kind, prompt) if prompt is None else plain
                if ask.max_time_s < math.inf:
                    given = tools.texts.in_time(given, first, first.precision)
                batches.append((await tools.texts.tokenize(given, first))[0])
            query, others = batches
            first.batch = Batch.joined(
                [(query, 0), *((others, index) for index in range(len(others)))]
            )
            first.padding = Padding(first.batch.lengths, None)
            first.outputs, first.field = (Pooled.compared(model.bundle),), pairs.field
            first.encode = partial(_likeness, model)
            alike = await tools.answers.answer(first)
    finally:
        ask.stop = None
        if first.statistics:  # nobody reports it
            first.statistics.end_request()
    there = range(len(first.batch)) if first.there is None else first.there
    by_likeness = sorted(range(len(alike)), key=lambda place: -alike[place])
    known = [there[1 + place] - 1 for place in by_likeness]
    return [*known, *sorted(set(range(len(documents))) - set(known))]


def _likeness(model: Model, ask: Ask) -> Sequence[np.float32]:
    """How alike the query and each document that is there are. Nothing where it is not there."""
    if not len(ask.batch) or (ask.there and ask.there[0] != 0):
        return ()
    found: Sequence[np.float32] = compared(model).shape(ask)
    return found
