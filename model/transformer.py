"""One transformer forward over rows `[N, d_model]`.

B batch, S grid width, N rows, H heads, V vocabulary. It holds every variant that `Config` names
(where the norms stand, which norm, which activation) and knows nothing of ONNX or HTTP.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm.model.attention import Attention, Trace
from addnorm.model.config import Activation, Config, HeadConfig
from addnorm.model.layout import LAYOUTS, Layout, Mask, block_of
from addnorm.model.pooling import picked
from addnorm.model.positions import RelativeBias, sinusoids


class LayerNorm(nn.Module):
    """gamma * (x - mean) / denominator + beta over the trailing axes `normalized_shape`.

    kind "layer": the denominator is sqrt(biased variance + eps) (Ba et al., arXiv:1607.06450).
    kind "std": it is unbiased std + eps, as many tutorials write it.
    bias: whether there is a beta.
    """

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...],
        eps: float = 1e-5,
        kind: Literal["layer", "std"] = "layer",
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.shape = (
            (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        )
        self.eps, self.kind = eps, kind
        self.gamma = nn.Parameter(torch.ones(self.shape))
        self.beta = nn.Parameter(torch.zeros(self.shape)) if bias else None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x `[..., *normalized_shape]` -> y like x; mean, 1 / denominator `[..., 1, ...]`."""
        if self.kind == "layer":  # one ONNX LayerNormalization node, whose statistics come for free
            return torch.native_layer_norm(x, self.shape, self.gamma, self.beta, self.eps)
        axes = list(range(-len(self.shape), 0))
        mean = x.mean(axes, keepdim=True)
        centred = x - mean
        variance = centred.square().sum(axes, keepdim=True) / (math.prod(self.shape) - 1)
        rstd = 1.0 / (variance.sqrt() + self.eps)
        y = self.gamma * (centred * rstd)
        return y if self.beta is None else y + self.beta, mean, rstd


def norm(config: Config, width: int | None = None) -> LayerNorm:
    """width: d_model if None."""
    return LayerNorm(width or config.d_model, config.eps, config.norm, config.norm_bias)


class FeedForward(nn.Module):
    """act(x W1 + b1) W2 + b2, position by position."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.activation = config.activation
        self.up = nn.Linear(config.d_model, config.d_ff)
        self.down = nn.Linear(config.d_ff, config.d_model)

    def forward(self, x: Tensor) -> Tensor:  # [N, d] -> [N, d]
        return self.down(ACTIVATIONS[self.activation](self.up(x)))  # type: ignore[no-any-return]


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
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.order = config.block
        self.attention = Attention(config)
        self.ffn = FeedForward(config)
        self.norm1 = norm(config)
        if self.order != "single":
            self.norm2 = norm(config)

    def forward(self, x: Tensor, layout: Layout, mask: Mask, trace: Trace) -> Tensor:
        """x `[N, d]` -> `[N, d]`; every norm's statistics go to `trace`."""
        if self.order == "pre":
            x = x + self.attention(trace.norm(self.norm1(x)), layout, mask, trace)
            return x + self.ffn(trace.norm(self.norm2(x)))  # type: ignore[no-any-return]
        if self.order == "post":
            x = trace.norm(self.norm1(x + self.attention(x, layout, mask, trace)))
            return trace.norm(self.norm2(x + self.ffn(x)))
        attended = self.attention(x, layout, mask, trace)
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
            self.norm = norm(config, width)
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
        self.block = block_of(config.d_model // config.n_heads)
        width = config.embedding_size or config.d_model
        self.tokens = nn.Embedding(config.vocab_size, width)
        if config.positions == "learned":
            self.positions = nn.Embedding(config.max_positions, width)
        else:
            self.positions = nn.Embedding.from_pretrained(sinusoids(config.max_positions, width))
        if config.type_vocab_size > 1:
            self.types = nn.Embedding(config.type_vocab_size, width)
        if config.embedding_norm:
            self.embedding_norm = norm(config, width)
        if config.embedding_size:
            self.projection = nn.Linear(width, config.d_model)
        if config.relative_buckets:
            self.relative_bias = RelativeBias(
                config.relative_buckets, config.n_heads, config.max_positions
            )
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_blocks))
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
        """What a head makes of the activations that `forward` returned: `[B, width]`, or
        `[B, S, width]` if it runs on every token. KeyError if there is no such head.
        """
        pick = self.config.heads[output].pick
        rows = picked(pick, activations, attention_mask)
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
        buckets = self.config.relative_buckets
        relative = self.relative_bias(layout.distances) if buckets else None
        mask = layout.attention_mask(self.config.causal, relative)
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        x = self.embed(layout.gather(input_ids), layout.position_ids, layout.gather(types))
        if self.config.embedding_norm:
            x = trace.norm(self.embedding_norm(x))
        if self.config.embedding_size:
            x = self.projection(x)
        n_layers, n_blocks = self.config.n_layers, self.config.n_blocks
        for layer in range(n_layers):
            x = self.blocks[layer * n_blocks // n_layers](trace.hidden(x), layout, mask, trace)
        if self.config.final_norm:
            x = trace.norm(self.final_norm(x))
        return trace.hidden(x)

    def embed(self, token_ids: Tensor, position_ids: Tensor, type_ids: Tensor) -> Tensor:
        """Three times `[N]` -> `[N, d]`."""
        tokens = self.tokens(token_ids)
        if self.config.embedding_scale != 1.0:
            tokens = tokens * self.config.embedding_scale
        places = self.positions(position_ids)
        if self.config.type_vocab_size > 1:
            places = places + self.types(type_ids)
        return tokens + places  # type: ignore[no-any-return]


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
