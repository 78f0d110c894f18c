"""What a request may ask for: a class for each output, listed in `OUTPUTS`."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.outputs.as_it_is import AsItIs
from addnorm.service.engine.outputs.lens import Attentions, HiddenStates
from addnorm.service.engine.outputs.logits import Logits, LogitsAt, TopLogits
from addnorm.service.engine.outputs.output import Computed, Output
from addnorm.service.engine.outputs.per_token import Activations, NormStatistics, TokenVectors
from addnorm.service.engine.outputs.pooled import Pooled
from addnorm.service.engine.outputs.prompt_logprobs import PromptLogprobs, ScoredPrompts
from addnorm.service.engine.outputs.sparse import Sparse
from addnorm.service.engine.outputs.values import SparseVectors, TopK, Value
from addnorm.service.errors import InvalidInput

__all__ = [
    "OUTPUTS",
    "Activations",
    "AsItIs",
    "Attentions",
    "Computed",
    "DType",
    "HiddenStates",
    "Logits",
    "LogitsAt",
    "NormStatistics",
    "Output",
    "OutputKind",
    "OutputKinds",
    "Pooled",
    "PromptLogprobs",
    "ScoredPrompts",
    "Sparse",
    "SparseVectors",
    "TokenVectors",
    "TopK",
    "TopLogits",
    "Value",
]
DType = Literal["float32", "float16"]
OutputKind = type[Output[Value]]


@dataclass(frozen=True)
class OutputKinds:
    """The outputs that a server knows, in the order in which they are documented."""

    known: tuple[OutputKind, ...]

    def names(self, bundle: Bundle) -> tuple[str, ...]:
        """Names of the listed outputs that the model has."""
        return tuple(kind.name for kind in self._listed if kind.is_of(bundle))

    def default_names(self, bundle: Bundle) -> tuple[str, ...]:
        """Activations, and what heads make of them; the answer of a module as it is. All outputs of
        a model that has none of these."""
        defaults = (kind for kind in self._listed if kind.is_default and kind.is_of(bundle))
        return tuple(kind.name for kind in defaults) or self.names(bundle)

    @cached_property
    def by_name(self) -> dict[str, OutputKind]:
        return {kind.name: kind for kind in self.known}

    @cached_property
    def fields(self) -> tuple[tuple[str, str], ...]:
        """Request fields that are for one output alone, each with the output's name."""
        return tuple((field, kind.name) for kind in self.known for field in kind.fields())

    def check_names(self, names: Sequence[str], bundle: Bundle) -> None:
        """InvalidInput unless the model has all of them and each is named once."""
        if not names:
            known = ", ".join(self.names(bundle))
            raise InvalidInput(f"outputs is empty: ask for some of {known}", param="outputs")
        for name in names:
            if name not in self.by_name or not self.by_name[name].is_of(bundle):
                known = ", ".join(self.names(bundle))
                raise InvalidInput(
                    f"outputs has {name!r}: {bundle.ref} has {known}", param="outputs"
                )
            if names.count(name) > 1:
                raise InvalidInput(f"outputs has {name!r} twice", param="outputs")

    @cached_property
    def _listed(self) -> list[OutputKind]:
        return sorted(self.known, key=lambda kind: kind.is_derived)


OUTPUTS = OutputKinds(
    (
        Activations,
        AsItIs,
        Logits,
        TokenVectors,
        Sparse,
        Pooled,
        NormStatistics,
        PromptLogprobs,
        HiddenStates,
        Attentions,
    )
)
