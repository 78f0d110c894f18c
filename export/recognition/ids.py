"""The uses of token ids in a forward beside reading their rows in a table: it may compare them with
one number, as with a pad's. Anything else is refused, since what is served would not follow it."""

from addnorm.export.recognition.explained import VIEWS
from addnorm.export.reference.trace import LOOKUPS, SHAPE_ONLY, Step, Trace, Unrecognized, Value

CALLED = {"_local_scalar_dense": "item()", "__bool__": "bool()"}


class IdUses:
    """ids: those that are told from others, with the step that does. constants: values that are the
    same for all sequences without them."""

    def __init__(self, trace: Trace, vocab_size: int) -> None:
        """Unrecognized for an operator that makes something else of ids."""
        self.ids: dict[int, Step] = {}
        self.constants: set[Value] = set()
        live = {value: value for value in (trace.ids, trace.types) if value}  # and views of them
        for step in trace.steps:
            id_inputs = [x for x in step.inputs if x.of_ids and not x.of_rows]
            if not id_inputs or step.op in SHAPE_ONLY:
                continue
            if all(x in self.constants for x in id_inputs):
                self.constants.update(x for x in step.values if not x.of_rows)
            elif step.rows or id_inputs[0] not in live or len(id_inputs) > 1:
                raise _refusal(step)
            elif step.op in VIEWS:
                live |= dict.fromkeys(step.values, live[id_inputs[0]])
            elif step.op in ("eq", "ne") and live[id_inputs[0]] is trace.ids:
                operand = step.arguments[1]
                if isinstance(operand, Value) or id_inputs[0].tensor.numel() < trace.length:
                    raise _refusal(step)
                if 0 <= operand < vocab_size:
                    self.ids.setdefault(int(operand), step)
                self.constants.update(step.values)
            elif step.op not in LOOKUPS or not step.values[0].of_rows:
                raise _refusal(step)
        for name, value, line in trace.left:
            if value not in self.constants:
                raise Unrecognized(
                    f"{CALLED.get(name, name)}{f', at {line},' if line else ''} gives Python"
                    f" {'activations' if value.of_rows else 'token ids'}: code that uses them in"
                    " Python, such as a branch, cannot be traced"
                )


def _refusal(step: Step) -> Unrecognized:
    return Unrecognized(
        f"{step.op}{step.where} uses token ids for something other than reading rows of a table"
    )
