"""What a dialect's decode asks for, without a body."""

from collections.abc import Sequence
from typing import Any

from addnorm.service.asking.ask import Ask
from addnorm.service.engine.batch import from_lists
from addnorm.service.engine.model import Model
from addnorm.service.engine.outputs import Output
from tests.support.waiting import PATIENCE_S


def ask_for(model: Model, rows: Sequence[Sequence[int]], output: Output[Any], **fields: Any) -> Ask:
    """fields: of the ask, in place of what it has by default."""
    ask = Ask(timeout_s=PATIENCE_S)
    ask.model, ask.outputs = model, (output,)
    ask.batch, ask.padding = from_lists([list(row) for row in rows])
    for name, value in fields.items():
        setattr(ask, name, value)
    return ask
