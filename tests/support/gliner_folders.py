"""Small folders as the package gliner writes them, without it, and its kept answers of them."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from addnorm.export.certificate.extraction import LABELS
from addnorm.export.exporting import choose_graph, export
from addnorm.export.opening import Checkpoint
from addnorm.export.wishes import Wishes
from addnorm.model.checkpoints.gliner import BODY, SPANS
from addnorm.service.engine.bundle import Bundle
from tests.support.exports import shared_exports

KEPT = Path(__file__).parents[1] / "golden" / "gliner.json"  # written by gliner.py beside it
WORDS = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "person", "organization", "place", "a", "date",
    "or", "time", "city", "product", "email", "address", "number", "train", "language", "the",
    "##s", "token", "leaves", "at", "nine", "to", "london", "ada", "lives", "in", ".", "-", "and",
]  # fmt: skip
D_MODEL, MAX_TOKENS, MAX_WORDS = 32, 48, 30
# of all numbers but the transformer's, by kind: so large that scores are far from each other
GAINS = {"spans": 1.6, "tokens": 1.2}
FIELDS: dict[str, dict[str, Any]] = {
    "spans": {"hidden_size": 16, "max_width": 4, "num_rnn_layers": 1, "span_mode": "markerV0"},
    "tokens": {
        "hidden_size": D_MODEL, "num_rnn_layers": 0, "span_mode": "token_level",
        "embed_ent_token": False,
    },
}  # fmt: skip


def export_both(root: Path) -> None:
    """Folders of both kinds, and their bundles; the model of spans has labels of its own."""
    exported(write(root / "spans", "spans"), root / "bundles", labels=LABELS[-1])
    exported(write(root / "tokens", "tokens"), root / "bundles")


def exported(folder: Path, out: Path, **wishes: Any) -> Bundle:
    """A bundle that was compared with the kept answers."""
    chosen = Wishes(**{"reference": kept(folder.name), **wishes})
    with shared_exports(), choose_graph(Checkpoint(str(folder)), chosen) as opened:
        return export(opened, out, folder.name)


def write(folder: Path, kind: str, **changed: Any) -> Path:
    """kind: "spans" or "tokens". changed: fields of gliner_config.json."""
    folder.mkdir(parents=True)
    tokenizer = _tokenizer(folder)
    encoder = BertConfig(
        vocab_size=len(tokenizer), hidden_size=D_MODEL, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=48, max_position_embeddings=MAX_TOKENS,
    )  # fmt: skip
    draws = np.random.default_rng(0)

    def draw(*shape: int, gain: float = 1.0) -> torch.Tensor:
        numbers = draws.standard_normal(shape) * gain / shape[-1] ** 0.5
        return torch.from_numpy(numbers.astype(np.float32))

    body = BertModel(encoder).state_dict()
    tensors = {
        BODY + name: torch.ones(tensor.shape) if "LayerNorm.weight" in name else draw(*tensor.shape)
        for name, tensor in body.items()
        if tensor.is_floating_point()
    }
    fields = FIELDS[kind]
    for name, shape in _shapes(kind, fields["hidden_size"]).items():
        tensors[name] = draw(*shape, gain=GAINS[kind])
    if kind == "tokens":
        tensors["scorer.out_mlp.3.bias"] -= 1  # fewer names
    save_file(tensors, folder / "model.safetensors")
    settings = {
        "class_token_index": tokenizer.convert_tokens_to_ids("<<ENT>>"),
        "vocab_size": len(tokenizer), "encoder_config": encoder.to_dict(), "max_len": MAX_WORDS,
        "ent_token": "<<ENT>>", "sep_token": "<<SEP>>", "model_name": "none", "model_type": None,
        "words_splitter_type": "whitespace", "subtoken_pooling": "first", **fields, **changed,
    }  # fmt: skip
    (folder / "gliner_config.json").write_text(json.dumps(settings))
    return folder


def _tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    disable_progress_bar()
    words = Tokenizer(WordPiece({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    words.normalizer, words.pre_tokenizer = BertNormalizer(), BertPreTokenizer()
    around = [(word, WORDS.index(word)) for word in ("[CLS]", "[SEP]")]
    words.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=around)
    markers = [AddedToken(word, special=True) for word in ("[FLERT]", "<<ENT>>", "<<SEP>>")]
    words.add_special_tokens([*WORDS[:5], *markers])
    named = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, model_max_length=MAX_TOKENS, **named
    )
    tokenizer.save_pretrained(folder)
    return tokenizer


def _shapes(kind: str, width: int) -> dict[str, tuple[int, ...]]:
    """The package's names of what is behind the transformer."""
    shapes: dict[str, tuple[int, ...]] = {}

    def linear(name: str, inputs: int, outputs: int) -> None:
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (outputs, inputs), (outputs,)

    def mlp(name: str, inputs: int, outputs: int) -> None:
        linear(f"{name}.0", inputs, 4 * width)
        linear(f"{name}.3", 4 * width, outputs)

    if kind == "tokens":
        linear("scorer.proj_token", width, 2 * width)
        linear("scorer.proj_label", width, 2 * width)
        mlp("scorer.out_mlp", 3 * width, 3)
        return shapes
    linear("token_rep_layer.projection", D_MODEL, width)
    for end in ("l0", "l0_reverse"):
        for part, size in (("ih", width), ("hh", width // 2)):
            shapes[f"rnn.lstm.weight_{part}_{end}"] = (2 * width, size)
            shapes[f"rnn.lstm.bias_{part}_{end}"] = (2 * width,)
    mlp(f"{SPANS}project_start", width, width)
    mlp(f"{SPANS}project_end", width, width)
    mlp(f"{SPANS}out_project", 2 * width, width)
    mlp("prompt_rep_layer", width, width)
    return shapes


Names = list[dict[str, Any]]


def key(text: str, labels: Sequence[str], threshold: float, flat: bool) -> str:
    """Labels of the certificate are known by their number."""
    return f"{text}|{len(labels)}|{threshold:g}|{'flat' if flat else 'nested'}"


def kept(kind: str) -> Callable[[str, Sequence[str], float, bool], Names]:
    """The package's answers of a folder of this kind. KeyError for what it was not asked."""
    rows: Mapping[str, list[list[Any]]] = json.loads(KEPT.read_text())[kind]

    def answer(text: str, labels: Sequence[str], threshold: float, flat: bool) -> Names:
        return [
            {"start": start, "end": end, "text": text[start:end], "label": labels[label],
             "score": score}
            for start, end, label, score in rows[key(text, labels, threshold, flat)]
        ]  # fmt: skip

    return answer
