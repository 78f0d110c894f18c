"""A checkpoint's tensors, by the table of its family, into a Transformer. Nothing is left over."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from addnorm.model.checkpoints.family import Family, HeadTable, Raw
from addnorm.model.config import Config, HeadConfig
from addnorm.model.transformer import Head, Transformer

QKV = "attention.qkv"  # of a block; heads of queries may be more than those of keys
THEIRS = {"gamma": "weight", "beta": "bias"}  # of our norms
# copied to float32; fewer bits are quantized, and mean nothing without their scales
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
NUM_NAMED = 12  # keys of one kind, in a message
FIRST_RELEASE = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


class CheckpointError(ValueError):
    """The folder is not one that can be exported. The message lists all that does not fit."""


@dataclass
class Reader:
    """Returns tensors by the family's own keys, and collects everything that does not fit."""

    family: Family
    weights: dict[str, Tensor]
    unused: list[str]  # prefixes ending in ".", and keys, without effect
    used: set[str] = field(default_factory=set)
    missing: list[str] = field(default_factory=list)
    misshaped: list[str] = field(default_factory=list)
    without_head: bool = False  # whether heads that are stored have no effect

    @classmethod
    def open(
        cls, family: Family, stored: Mapping[str, Tensor], ignore: tuple[str, ...]
    ) -> "Reader":
        """ignore: what the stored keys begin with that are left out."""
        weights, unused = {}, set()
        for key, tensor in stored.items():
            if key.startswith(ignore):
                unused.add(key)
                continue
            name = key
            for prefix in family.prefixes:
                if key.startswith(prefix):
                    name = key.removeprefix(prefix)
                    unused.add(prefix)
                    break
            for old, new in FIRST_RELEASE.items():
                name = name.replace(old, new)
            weights[name] = tensor
        return cls(family, weights, sorted(unused))

    def of_shapes(self) -> "Reader":
        """One that reads shapes alone, on the device "meta", which holds no numbers."""
        shapes = {key: tensor.to("meta") for key, tensor in self.weights.items()}
        return replace(self, weights=shapes, used=set(), missing=[], misshaped=[])

    def __contains__(self, key: str) -> bool:
        return key in self.weights

    def tie(self, key: str, twin: str) -> None:
        """Two names of one tensor. What is stored under one of them is read under both. Where both
        are stored, each is its own, as in transformers."""
        if (key in self.weights) != (twin in self.weights):
            stored, absent = (key, twin) if key in self.weights else (twin, key)
            self.weights[absent] = self.weights[stored]

    def rows(self, key: str, otherwise: int) -> int:
        """The first size of a tensor."""
        tensor = self.weights.get(key)
        return otherwise if tensor is None or not tensor.dim() else len(tensor)

    def read(self, key: str, shape: torch.Size) -> Tensor:
        """Zeros if it does not fit, which `finish` then reports."""
        tensor = self.weights.get(key)
        self.used.add(key)
        if tensor is None:
            self.missing.append(key)
        elif tensor.shape != shape:
            self.misshaped.append(f"{key} is {list(tensor.shape)}, {list(shape)} expected")
        elif tensor.dtype not in FLOATS:
            self.misshaped.append(f"{key} is {tensor.dtype}, floats of 16 bits or more expected")
        else:
            return tensor
        return torch.zeros(shape)

    def finish(self, folder: Path) -> list[str]:
        """The keys without effect. CheckpointError if anything did not fit."""
        unread_keys = sorted(set(self.weights) - self.used)
        heads = self.family.heads if self.without_head else ()
        keys = [key for head in heads for key in (head.linear, head.dense, head.norm) if key]
        of_heads = [rf"{re.escape(key)}\..*" for key in keys]
        of_heads += [re.escape(head.bias) for head in heads if isinstance(head.bias, str)]
        ignorable = re.compile("|".join([*self.family.unused, *of_heads]) or "(?!)")
        misfits = {
            "missing": sorted(self.missing),
            "unexpected": [key for key in unread_keys if not ignorable.fullmatch(key)],
            "misshaped": sorted(self.misshaped),
        }
        # the words before the name of the token embeddings
        tokens = f"{self.family.modules['tokens']}.weight"
        wrapped_keys = (key for key in misfits["unexpected"] if key.endswith(tokens))
        word = next(wrapped_keys, tokens).removesuffix(tokens)
        for prefix in self.family.prefixes:
            word = word.removesuffix(prefix)
        if word and misfits["missing"]:
            raise CheckpointError(
                f"{folder}: the names of its weights begin with {word!r}, as a wrapper of the model"
                f" leaves them, and transformers does not read them so: save the model within the"
                " wrapper with save_pretrained"
            )
        if any(misfits.values()):
            listed = "; ".join(
                f"{kind}: {_shorten(keys)}" for kind, keys in misfits.items() if keys
            )
            advice = (
                "; --ignore PREFIX leaves out keys with this prefix"
                if misfits["unexpected"]
                else ""
            )
            raise CheckpointError(f"{folder}: weights do not fit: {listed}{advice}")
        return sorted([*self.unused, *unread_keys])


def _shorten(keys: Sequence[str]) -> str:
    num_hidden = len(keys) - NUM_NAMED
    return ", ".join(keys[:NUM_NAMED]) + (f" and {num_hidden} more" if num_hidden > 0 else "")


def fill(model: Transformer, reader: Reader, raw: Raw) -> None:
    """Copies every parameter of the body out of the checkpoint."""
    family, offset = reader.family, reader.family.position_offset(raw)
    for part, checkpoint_keys in family.modules.items():
        keys = (checkpoint_keys,) if isinstance(checkpoint_keys, str) else checkpoint_keys
        if part.startswith("blocks."):
            path = part.removeprefix("blocks.{}.")
            for index, block in enumerate(model.blocks):
                if module := _part(block, path):  # the first may lack a norm
                    names = [key.format(index) for key in keys]
                    is_split = path == QKV and len(names) > 1
                    sizes = model.config.qkv_widths if is_split else None
                    _copy(module, names, reader, family.transposed, sizes)
                    for parameter in module.parameters() if part in family.swapped else ():
                        parameter.copy_(parameter.roll(len(parameter) // 2, 0))
        elif part == "positions" and model.config.positions.added != "none":
            rows, width = model.positions.weight.shape
            table = reader.read(f"{keys[0]}.weight", torch.Size([rows + offset, width]))
            model.positions.weight.copy_(table[offset:])
        elif part == "types" and model.config.type_vocab_size == 1:
            # the one type is added at every position; without such a field nothing is
            if raw.get("type_vocab_size") and f"{keys[0]}.weight" in reader:
                shape = torch.Size([1, model.tokens.weight.shape[1]])
                is_placed = model.config.positions.added != "none"
                added_to = model.positions if is_placed else model.tokens
                added_to.weight.add_(reader.read(f"{keys[0]}.weight", shape)[0])
        elif part in family.projections and f"{family.projections[part]}.weight" in reader:
            _project(model.get_submodule(part), keys[0], family.projections[part], reader)
        elif module := _part(model, part):
            _copy(module, list(keys), reader, family.transposed)


def _part(module: nn.Module, path: str) -> nn.Module | None:
    """None where the shape has no such part."""
    try:
        return module.get_submodule(path)
    except AttributeError:
        return None


def _copy(
    module: nn.Module,
    keys: list[str],
    reader: Reader,
    transposed: bool,
    sizes: list[int] | None = None,
) -> None:
    """One of our modules from one of theirs, or from several that lie end to end in it.

    transposed: whether weights of linear layers are stored [in, out]. sizes: how many rows each of
    several has; None: equally many.
    """
    for parameter_name, parameter in module.named_parameters():
        name = THEIRS.get(parameter_name, parameter_name)
        turned = transposed and isinstance(module, nn.Linear) and name == "weight"
        parts = parameter.split(sizes) if sizes else parameter.chunk(len(keys))
        for key, part in zip(keys, parts, strict=True):
            target = part.T if turned else part
            target.copy_(reader.read(f"{key}.{name}", target.shape))


def _project(embedding: nn.Module, key: str, projection: str, reader: Reader) -> None:
    """Rows [n, stored] times the projection [ours, stored], in place of a layer for it."""
    assert isinstance(embedding, nn.Embedding)
    rows, width = embedding.weight.shape
    stored = reader.weights[f"{projection}.weight"].shape[-1]
    matrix = reader.read(f"{projection}.weight", torch.Size([width, stored]))
    table = reader.read(f"{key}.weight", torch.Size([rows, stored]))
    embedding.weight.copy_(table.float() @ matrix.float().T)


def head_config(table: HeadTable, reader: Reader, body: Config) -> HeadConfig:
    """Sizes as stored."""
    width = reader.rows(f"{table.linear}.weight", body.vocab_size if table.tied else 1)
    is_left_out = table.dense_is_optional and f"{table.dense}.weight" not in reader
    if not table.dense or is_left_out:
        return HeadConfig(table.pick, width, bias=bool(table.bias))
    return HeadConfig(
        pick=table.pick,
        width=width,
        dense=reader.rows(f"{table.dense}.weight", body.d_model),
        dense_bias=table.dense_bias,
        activation=body.activation if table.activation is None else table.activation,
        norm=table.norm is not None,
        bias=bool(table.bias),
    )


def fill_head(head: Head, table: HeadTable, reader: Reader) -> None:
    """Heads are stored as [out, in] in every family."""
    for module, key in (("dense", table.dense), ("norm", table.norm)):
        if key and module in head.steps:
            _copy(head.get_submodule(module), [key], reader, transposed=False)
    weight = head.linear.weight
    weight.copy_(reader.read(f"{table.linear}.weight", weight.shape))
    if head.linear.bias is not None:
        head.linear.bias.copy_(reader.read(f"{table.linear}.bias", head.linear.bias.shape))
        if isinstance(table.bias, str):
            reader.used.add(table.bias)


def tie(table: HeadTable, reader: Reader, raw: Raw) -> None:
    """The matrix of a language model's head is that of its token embeddings, unless config.json
    says no, and its bias has two names."""
    if table.tied and raw.get("tie_word_embeddings") is not False:
        reader.tie(f"{table.linear}.weight", f"{reader.family.modules['tokens']}.weight")
    if isinstance(table.bias, str):
        reader.tie(f"{table.linear}.bias", table.bias)
