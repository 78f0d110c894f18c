"""All fp32 graphs of a model. What is written to a bundle and what it is compared with are both
made here."""

from dataclasses import dataclass, replace

from addnorm.export.graphs import far_scores
from addnorm.export.graphs.graph import export_body, export_head, export_lens
from addnorm.export.graphs.model_file import Graph
from addnorm.export.graphs.portable import make_portable
from addnorm.model.layout import LAYOUTS
from addnorm.model.transformer import Transformer


@dataclass(frozen=True)
class Graphs:
    """The layout padded has all as PyTorch exports them. In the packed one, those that a CPU
    runs are portable."""

    body: Graph
    plain: Graph  # the body with Attention and LayerNormalization, as a GPU runs it
    lens: Graph | None
    heads: dict[str, Graph]  # by output
    clipped_layers: tuple[int, ...] = ()  # see `far_scores`

    @classmethod
    def export(cls, model: Transformer, lens: bool) -> "Graphs":
        """The values of the graphs are the model's own memory."""
        plain = export_body(model)
        heads = {
            name: export_head(head, name, model.config.d_model)
            for name, head in model.named_heads()
        }
        if model.layout is not LAYOUTS["packed"]:
            return cls(plain, plain, None, heads)
        lens_graph = make_portable(export_lens(model)) if lens else None
        portable_heads = {name: make_portable(head) for name, head in heads.items()}
        return cls(make_portable(plain), plain, lens_graph, portable_heads)

    def clip(self, layers: tuple[int, ...]) -> "Graphs":
        """Clips the scores of these layers."""
        if not layers:
            return self
        lens = far_scores.clip(self.lens, layers) if self.lens else None
        body = far_scores.clip(self.body, layers)
        return replace(self, body=body, lens=lens, clipped_layers=layers)
