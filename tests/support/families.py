"""Checkpoints of every family and head, random and of unusual shapes, written by transformers."""

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

VOCAB_SIZE, POSITIONS, NUM_LABELS = 99, 40, 5
ENCODER = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 36, "num_hidden_layers": 3, "num_attention_heads": 3,
    "intermediate_size": 50, "max_position_embeddings": POSITIONS,
}  # fmt: skip
# prefix of a class of transformers -> its configuration
CONFIGS: dict[str, dict[str, Any]] = {
    "Bert": {**ENCODER, "type_vocab_size": 3, "layer_norm_eps": 1e-5, "hidden_act": "gelu_new"},
    "Roberta": {**ENCODER, "pad_token_id": 4, "hidden_act": "relu"},  # with 2 token types
    "XLMRoberta": {**ENCODER, "type_vocab_size": 1, "hidden_act": "silu"},
    "Camembert": {**ENCODER, "type_vocab_size": 1, "num_attention_heads": 9},
    "Electra": {**ENCODER, "embedding_size": 20},
    "MPNet": {**ENCODER, "max_position_embeddings": 200, "layer_norm_eps": 1e-5},
    "DistilBert": {
        "vocab_size": VOCAB_SIZE, "dim": 36, "n_layers": 3, "n_heads": 3, "hidden_dim": 50,
        "max_position_embeddings": POSITIONS, "sinusoidal_pos_embds": True, "pad_token_id": 2,
    },
    "Albert": {**ENCODER, "num_hidden_layers": 4, "embedding_size": 20, "num_hidden_groups": 2},
    "GPT2": {
        "vocab_size": VOCAB_SIZE, "n_embd": 36, "n_layer": 3, "n_head": 3, "n_inner": 50,
        "n_positions": POSITIONS, "pad_token_id": 0,
    },
    "OPT": {
        "vocab_size": VOCAB_SIZE, "hidden_size": 36, "num_hidden_layers": 3, "ffn_dim": 50,
        "num_attention_heads": 3, "max_position_embeddings": POSITIONS, "word_embed_proj_dim": 20,
        "do_layer_norm_before": False,
    },
    "ModernBert": {
        **ENCODER, "pad_token_id": 0, "local_attention": 8, "classifier_pooling": "mean",
        "norm_bias": True, "classifier_bias": True,
    },
    "NomicBert": {**ENCODER, "type_vocab_size": 3},
    "Gte": {**ENCODER, "type_vocab_size": 2},
    "JinaEmbeddingsV3": ENCODER,
    "DebertaV2": {
        **ENCODER, "relative_attention": True, "position_buckets": 8, "norm_rel_ebd": "layer_norm",
        "pos_att_type": "p2c|c2p", "share_att_key": True, "position_biased_input": False,
    },
    "Qwen3": {
        **ENCODER, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10,
        "pad_token_id": 0, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    },
    "Qwen2": {
        **ENCODER, "num_attention_heads": 6, "num_key_value_heads": 2, "pad_token_id": 0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    },
    "Llama": {
        **ENCODER, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 10,
        "pad_token_id": 0,
    },
    "EuroBert": {
        **ENCODER, "num_attention_heads": 6, "num_key_value_heads": 3, "pad_token_id": 0,
        "bos_token_id": 1, "eos_token_id": 2, "mask_token_id": 3, "classifier_pooling": "mean",
    },
}  # fmt: skip
ROTARY = (
    "ModernBert",
    "NomicBert",
    "Gte",
    "JinaEmbeddingsV3",
    "Qwen3",
    "Qwen2",
    "Llama",
    "EuroBert",
)  # families whose positions are rotated
_LARGER = {"hidden_size": 192, "intermediate_size": 256, "num_attention_heads": 6}
# a size for which int8 pays
LARGER: dict[str, dict[str, Any]] = {
    **dict.fromkeys(CONFIGS, _LARGER),
    "DistilBert": {"dim": 192, "hidden_dim": 256, "n_heads": 6},
    "GPT2": {"n_embd": 192, "n_inner": 256, "n_head": 6},
    "OPT": {"hidden_size": 192, "ffn_dim": 256, "num_attention_heads": 6},
}
HEADS = (
    "Model", "ForMaskedLM", "ForPreTraining", "LMHeadModel", "ForCausalLM",
    "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering",
)  # fmt: skip
UNSUPPORTED = {  # decoders of encoders; a body behind a projection
    *(f"{name}ForCausalLM" for name in CONFIGS if name not in ("OPT", "Qwen3", "Qwen2", "Llama")),
    "BertLMHeadModel", "OPTModel", "OPTForQuestionAnswering",
}  # fmt: skip
CLASSES = sorted(
    name + head
    for name in CONFIGS
    for head in HEADS
    if name + head not in UNSUPPORTED and hasattr(transformers, name + head)
)


def family_of(class_name: str) -> str:
    return next(name for name in CONFIGS if class_name.startswith(name))


def made(class_name: str, **changed: Any) -> PreTrainedModel:
    """Each weight is drawn by its name, so that classes of one family have the same body."""
    family = family_of(class_name)
    has_labels = "Classification" in class_name and "id2label" not in changed
    options = {"num_labels": NUM_LABELS} if has_labels else {}
    config = getattr(transformers, f"{family}Config")(**{**CONFIGS[family], **options, **changed})
    model: PreTrainedModel = getattr(transformers, class_name)(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            short_name = name.removeprefix(f"{model.base_model_prefix}.")
            draws = torch.Generator().manual_seed(zlib.crc32(short_name.encode()))
            deviation = 0.15 if parameter.dim() == 1 else parameter.shape[-1] ** -0.5
            parameter.normal_(0.0, deviation, generator=draws)
            if parameter.dim() == 1 and name.endswith("weight"):  # of a norm
                parameter.add_(1.0)
    return model


def save(model: PreTrainedModel, folder: Path) -> Path:
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    return folder


def sequences(model: PreTrainedModel) -> list[tuple[list[int], list[int]]]:
    """Seeded (ids, token types) of several lengths. No id is a padding token's, which transformers
    would take for a pad."""
    draws = torch.Generator().manual_seed(1)
    kinds = getattr(model.config, "type_vocab_size", 1) or 1
    return [
        (
            torch.randint(5, VOCAB_SIZE, (length,), generator=draws).tolist(),
            torch.randint(0, kinds, (length,), generator=draws).sort().values.tolist(),
        )
        for length in (9, 1, 33, 4)
    ]


def layers(
    model: PreTrainedModel, ids: list[int], types: list[int]
) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """transformers' own for one sequence, by layer: hidden states `[1, S, d]`, attentions
    `[1, H, S, S]`. The model's attention must be "eager"."""
    out = _run(model, ids, types, output_hidden_states=True, output_attentions=True)
    return out.hidden_states, out.attentions


def _run(model: PreTrainedModel, ids: list[int], types: list[int], **options: bool) -> Any:
    inputs = {"input_ids": torch.tensor([ids])}
    if getattr(model.config, "type_vocab_size", 1) > 1:
        inputs["token_type_ids"] = torch.tensor([types])
    with torch.no_grad():
        return model(**inputs, **options)


def answers(
    model: PreTrainedModel, ids: list[int], types: list[int]
) -> tuple[Tensor | None, Tensor | None]:
    """transformers' own for one sequence: hidden states `[S, d]`; logits `[S, w]` or `[w]`.

    Hidden states None: they are not as wide as the blocks'. Logits None: there is no head.
    """
    out = _run(model, ids, types, output_hidden_states=True)
    if "last_hidden_state" in out:
        return out.last_hidden_state[0], None
    hidden = out.hidden_states[-1][0]
    width = getattr(model.config, "word_embed_proj_dim", None)
    return None if width and width != model.config.hidden_size else hidden, _logits(out)[0]


def _logits(out: Any) -> Tensor:
    if "start_logits" in out:
        return torch.stack([out.start_logits, out.end_logits], -1)
    logits: Tensor = out.prediction_logits if "prediction_logits" in out else out.logits
    return logits


def rows_of(logits: Tensor, num_tokens: int, pick: str) -> Tensor:
    """`[S, w]` or `[w]` as the served answer has them: the discriminator's scores have no width."""
    return logits[:, None] if pick == "every" and logits.shape == (num_tokens,) else logits
