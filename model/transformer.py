"""One transformer forward over rows `[N, d_model]`.

B batch, S grid width, N rows, H heads, V vocabulary. It holds every variant that `Config` names
(where the norms stand, which norm, which activation) and knows nothing of ONNX or HTTP.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm.model.attention import Attention, Trace, View
from addnorm.model.config import Activation, Config, HeadConfig
from addnorm.model.disentangled import Distances
from addnorm.model.grid import block_of
from addnorm.model.layout import LAYOUTS, Layout
from addnorm.model.norms import norm
from addnorm.model.pooling import pick_vectors
from addnorm.model.positions import RelativeBias, rotary_tables, sinusoids


class FeedForward(nn.Module):
    """act(x W1 + b1) W2 + b2, position by position. Gated: (act(x W1 + b1) * (x W3 + b3)) W2 + b2,
    where `up` is W1 and W3 end to end (Shazeer, arXiv:2002.05202).
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.activation, self.gated = config.activation, config.gated
        width = 2 * config.d_ff if config.gated else config.d_ff
        self.up = nn.Linear(config.d_model, width, bias=config.ffn_bias == "both")
        self.down = nn.Linear(config.d_ff, config.d_model, bias=config.ffn_bias != "none")

    def forward(self, x: Tensor) -> Tensor:  # [N, d] -> [N, d]
        act, x = ACTIVATIONS[self.activation], self.up(x)
        if not self.gated:
            return self.down(act(x))  # type: ignore[no-any-return]
        first, second = x.chunk(2, -1)
        return self.down(act(first) * second)  # type: ignore[no-any-return]


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "tanh": torch.tanh,
}


class Block(nn.Module):
    """Attention and feed-forward, with residuals and norms in one of three orders:

    post    x = norm1(x + attention(x));   x = norm2(x + ffn(x))
    pre     x = x + attention(norm1(x));   x = x + ffn(norm2(x))
    single  a = attention(x);              x = norm1(a + ffn(a))

    Without norm1, attention of order pre takes x itself.
    """

    def __init__(self, config: Config, has_norm1: bool = True) -> None:
        super().__init__()
        self.order, self.has_norm1 = config.block, has_norm1
        self.attention = Attention(config)
        self.ffn = FeedForward(config)
        if has_norm1:
            self.norm1 = norm(config)
        if self.order != "single":
            self.norm2 = norm(config)

    def forward(self, x: Tensor, view: View, trace: Trace) -> Tensor:
        """x `[N, d]` -> `[N, d]`; every norm's statistics go to `trace`."""
        if self.order == "pre":
            normal = trace.norm(self.norm1(x)) if self.has_norm1 else x
            x = x + self.attention(normal, view, trace)
            return x + self.ffn(trace.norm(self.norm2(x)))  # type: ignore[no-any-return]
        if self.order == "post":
            x = trace.norm(self.norm1(x + self.attention(x, view, trace)))
            return trace.norm(self.norm2(x + self.ffn(x)))
        attended = self.attention(x, view, trace)
        return trace.norm(self.norm1(attended + self.ffn(attended)))


class Head(nn.Module):
    """Rows -> logits, or vectors: [dense -> activation -> norm] -> [linear], see HeadConfig."""

    def __init__(self, config: Config, head: HeadConfig) -> None:
        super().__init__()
        self.activation, width = head.activation, config.d_model
        if head.dense:
            self.dense = nn.Linear(width, head.dense, bias=head.dense_bias)
            width = head.dense
        if head.norm:
            self.norm = norm(head.with_its_norm(config), width)
        if head.linear:
            self.linear = nn.Linear(width, head.width, bias=head.bias)
        parts = {"dense": head.dense, "norm": head.norm, "linear": head.linear}
        self.steps = [name for name, is_there in parts.items() if is_there]

    def forward(self, rows: Tensor) -> Tensor:  # [n, d] -> [n, width]
        if "dense" in self.steps:
            rows = ACTIVATIONS[self.activation](self.dense(rows))
        if "norm" in self.steps:
            rows = self.norm(rows)[0]
        return self.linear(rows) if "linear" in self.steps else rows


class Transformer(nn.Module):
    """Embeddings and blocks. Heads are not part of `forward`, see `head`."""

    def __init__(self, config: Config, layout: str = "packed") -> None:
        super().__init__()
        self.config = config
        self.layout = LAYOUTS[layout]
        self.block = block_of(config.head_dims)
        width, positions = config.embedding_size or config.d_model, config.positions
        self.tokens = nn.Embedding(config.vocab_size, width)
        if positions.added == "learned":
            self.positions = nn.Embedding(config.max_positions, width)
        elif positions.added == "sinusoidal":
            self.positions = nn.Embedding.from_pretrained(sinusoids(config.max_positions, width))
        if config.type_vocab_size > 1:
            self.types = nn.Embedding(config.type_vocab_size, width)
        if config.embedding_norm:
            self.embedding_norm = norm(config, width)
        if config.embedding_size:
            self.projection = nn.Linear(width, config.d_model)
        self.rotary = rotary_tables(config)
        if positions.buckets:
            self.relative_bias = RelativeBias(
                positions.buckets, config.n_heads, config.max_positions, positions.alibi
            )
        if shape := positions.disentangled:
            self.distances = Distances(config, norm(config) if shape.norm else None)
        self.blocks = nn.ModuleList(
            Block(config, config.first_norm or index > 0) for index in range(config.n_blocks)
        )
        if config.final_norm:
            self.final_norm = norm(config)
        self.heads = nn.ModuleDict(
            {name: Head(config, head) for name, head in config.heads.items()}
        )

    def named_heads(self) -> Iterator[tuple[str, Head]]:
        """(output, head), which `forward` does not run."""
        for name, head in self.heads.items():
            assert isinstance(head, Head)
            yield name, head

    def head(self, output: str, activations: Tensor, attention_mask: Tensor) -> Tensor:
        """The output of a head, of the activations that `forward` returned: `[B, width]`, or
        `[B, S, width]` if it runs on every token. KeyError if there is no such head.
        """
        pick = self.config.heads[output].pick
        rows = pick_vectors(pick, activations, attention_mask)
        return self.heads[output](rows)  # type: ignore[no-any-return]

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """input_ids, attention_mask, token_type_ids `[B, S]` int64, non-zero mask = real token
        -> activations `[B, S, d]`, norm_mean and norm_rstd `[B, S, n_norms]`, zeros at pads.

        token_type_ids: 0 if None. Without effect unless type_vocab_size is above 1.
        """
        layout, trace = self.layout(attention_mask, self.block), Trace()
        x = self._rows(layout, input_ids, token_type_ids, trace)
        return (
            layout.scatter(x),
            layout.scatter(torch.cat(trace.means, -1)),
            layout.scatter(torch.cat(trace.rstds, -1)),
        )

    def lens(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None,
        heads: Sequence[Tensor],
    ) -> tuple[list[Tensor], list[Tensor]]:
        """The same pass, seen from inside -> hidden states `[B, S, d]`, zeros at pads: the input of
        each layer, and the activations at the end; and of each layer the attention of its `heads`
        `[h]` int64: `[B, h, S, S]`, queries before keys, see `Layout.attentions`.
        """
        layout, trace = self.layout(attention_mask, self.block), Trace(heads)
        self._rows(layout, input_ids, token_type_ids, trace)
        return [layout.scatter(x) for x in trace.hidden_states], trace.attentions

    def _rows(
        self, layout: Layout, input_ids: Tensor, token_type_ids: Tensor | None, trace: Trace
    ) -> Tensor:
        """-> activations `[N, d]`."""
        local = [layer in self.config.local_layers for layer in range(self.config.n_layers)]
        ids, unseen_id = layout.gather(input_ids), self.config.unseen_id
        unseen = None if unseen_id is None else ids == unseen_id
        views = {is_local: self._view(layout, is_local, unseen) for is_local in sorted({*local})}
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        x = self.embed(ids, layout.position_ids, layout.gather(types))
        if self.config.embedding_norm:
            x = trace.norm(self.embedding_norm(x))
        if self.config.embedding_size:
            x = self.projection(x)
        n_layers, n_blocks = self.config.n_layers, self.config.n_blocks
        for layer in range(n_layers):
            block = self.blocks[layer * n_blocks // n_layers]
            x = block(trace.hidden(x), views[local[layer]], trace)
        if self.config.final_norm:
            x = trace.norm(self.final_norm(x))
        return trace.hidden(x)

    def _view(self, layout: Layout, is_local: bool, unseen: Tensor | None) -> View:
        """The view that local layers have of the rows, or the others. unseen: `[N]`, rows that are
        nobody's keys."""
        config = self.config
        is_tiled = config.positions.disentangled is not None
        grid = layout.grid(config.window if is_local else 0, is_tiled)
        relative = self.relative_bias(grid.distances) if config.positions.buckets else None
        table = self.rotary["local" if is_local else "full"] if self.rotary else None
        rotation = table(layout.position_ids) if table else None
        places = self.distances(grid.distances, grid.tiles) if is_tiled else None
        mask = grid.attention_mask(config.causal, relative, unseen)
        return View(grid, mask, rotation, places)

    def embed(self, token_ids: Tensor, position_ids: Tensor, type_ids: Tensor) -> Tensor:
        """Three times `[N]` -> `[N, d]`."""
        tokens = self.tokens(token_ids)
        if self.config.embedding_scale != 1.0:
            tokens = tokens * self.config.embedding_scale
        parts = []
        if self.config.positions.added != "none":
            parts.append(self.positions(position_ids))
        if self.config.type_vocab_size > 1:
            parts.append(self.types(type_ids))
        return tokens + sum(parts[1:], parts[0]) if parts else tokens  # type: ignore[no-any-return]


def shorten(model: Transformer, max_positions: int) -> None:
    """The model then takes up to so many tokens, and has the weights that they need alone."""
    model.config = config = replace(model.config, max_positions=max_positions)
    model.rotary = rotary_tables(config)
    if config.positions.added != "none":
        weight = model.positions.weight.detach()[:max_positions].clone()
        model.positions = nn.Embedding.from_pretrained(weight)
    if buckets := config.positions.buckets:
        table, alibi = model.relative_bias.table, config.positions.alibi
        model.relative_bias = RelativeBias(buckets, config.n_heads, max_positions, alibi)
        model.relative_bias.table = table
    if config.positions.disentangled:
        model.distances.limit(config)
    model.train(model.training)  # the new parts too


def add_unseen(model: Transformer, token_id: int) -> None:
    """The model then takes one id more, the last. It stands for this token, in rows that see all
    others and that no row sees, not even they: ColBERT fills queries with such rows
    (arXiv:2004.12832, section 3.2)."""
    config, tokens = model.config, model.tokens.weight.detach()
    model.config = replace(config, vocab_size=config.vocab_size + 1, unseen_id=config.vocab_size)
    table = torch.cat([tokens, tokens[token_id, None]])
    model.tokens = nn.Embedding.from_pretrained(table).train(model.training)


def randomize(model: Transformer, seed: int) -> Transformer:
    """Draws every parameter from `seed`.

    gamma and beta too: with ones and zeros nobody would notice that an export drops one.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                deviation = 0.1 if parameter.dim() == 1 else 1 / math.sqrt(parameter.shape[-1])
                parameter.normal_(0.0, deviation, generator=generator)
                if name.endswith("gamma"):
                    parameter.add_(1.0)
    return model
