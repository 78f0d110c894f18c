"""The outputs that a request may ask for: a class for each, listed in `OUTPUTS`."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.outputs.as_it_is import AsItIs
from addnorm.service.engine.outputs.lens import Attentions, HiddenStates
from addnorm.service.engine.outputs.logits import Logits, LogitsAt, TopLogits
from addnorm.service.engine.outputs.output import Output, OutputInputs
from addnorm.service.engine.outputs.per_token import Activations, NormStatistics, TokenVectors
from addnorm.service.engine.outputs.pooled import Pooled, PooledSpans, PooledWindows
from addnorm.service.engine.outputs.prompt_logprobs import PromptLogprobs, ScoredPrompts
from addnorm.service.engine.outputs.sparse import Sparse
from addnorm.service.engine.outputs.values import SparseVectors, TopK, Value
from addnorm.service.errors import InvalidInput

__all__ = [
    "OUTPUTS",
    "Activations",
    "AsItIs",
    "Attentions",
    "DType",
    "HiddenStates",
    "Logits",
    "LogitsAt",
    "NormStatistics",
    "Output",
    "OutputInputs",
    "OutputKind",
    "OutputKinds",
    "Pooled",
    "PooledSpans",
    "PooledWindows",
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

    def of(self, bundle: Bundle) -> dict[str, OutputKind]:
        """The outputs that the model has, by name."""
        kinds = list[OutputKind]()
        for kind in self._derived_last:
            kinds += AsItIs.kinds(bundle) if kind is AsItIs else [kind]
        return {kind.name: kind for kind in kinds if kind.is_of(bundle)}

    @cached_property
    def fields(self) -> tuple[tuple[str, str], ...]:
        """Request fields that are for one output alone, each with the output's name."""
        return tuple(
            (field, kind.name)
            for kind in self.known
            for field in (*((kind.name,) if kind.options else ()), *kind.fields)
        )

    def chosen(self, names: Sequence[str] | None, bundle: Bundle) -> dict[str, OutputKind]:
        """The outputs of these names. None: activations and the heads' outputs; every tensor of a
        module as it is; all outputs of a model that has none of these. InvalidInput unless the
        model has all of them and each is named once."""
        kinds = self.of(bundle)
        if names is None:
            tensors = {tensor.output for tensor in bundle.manifest.as_it_is or ()}
            defaults = {n: kind for n, kind in kinds.items() if kind.is_default or n in tensors}
            return defaults or kinds
        if not names:
            raise InvalidInput(
                f"outputs is empty: send some of {', '.join(kinds)}", param="outputs"
            )
        for name in names:
            if name not in kinds:
                raise InvalidInput(
                    f"outputs has {name[:200]!r}: {bundle.ref} has {', '.join(kinds)}",
                    param="outputs",
                )
            if names.count(name) > 1:
                raise InvalidInput(f"outputs has {name!r} twice", param="outputs")
        return {name: kinds[name] for name in names}

    @cached_property
    def _derived_last(self) -> list[OutputKind]:
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
