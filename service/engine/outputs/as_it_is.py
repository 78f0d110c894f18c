"""The output `output`: the answer of a module that is served as it is."""

from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.manifest import Pick
from addnorm.service.engine.outputs.output import Computed, Output
from addnorm.service.engine.outputs.values import ByRow, Dense, by_token


class AsItIs(Output[ByRow]):
    name = "output"
    json_type = list[list[list[float]]] | list[list[float]]
    description = (
        "[B][S][width] or [B][width]: the answer of a module that is served as it is, and has no"
        " other output."
    )

    @classmethod
    def is_of(cls, bundle: Bundle) -> bool:
        return bundle.manifest.as_it_is is not None

    def pick(self, bundle: Bundle) -> Pick:
        """The graph writes the answer to a sequence into the rows of all its tokens."""
        return "last" if bundle.manifest.as_it_is == "sequence" else "every"

    def make(self, of: Computed) -> ByRow:
        if self.is_by_token(of.bundle):
            return by_token(of.padding, of.rows.activations)
        return Dense(of.padding.scatter_rows(of.head_rows("last").activations))
