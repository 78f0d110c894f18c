"""Families that cannot be exported: why, and the nearest one that can."""

from collections.abc import Sequence

ROTARY = "its positions are rotated into queries and keys"
RMS = "its norms are RMSNorm, which has no mean; only LayerNorm is served"
UNSUPPORTED = {  # model_type -> reason, nearest
    "deberta": ("its scores have terms of content by relative position", "roberta"),
    "deberta-v2": ("its scores have terms of content by relative position", "xlm-roberta"),
    "esm": (f"{ROTARY}, and embeddings are scaled by the share of masked tokens", "bert"),
    "xlm-roberta-xl": ("its norms stand before attention, after an embedding", "xlm-roberta"),
    "roberta-prelayernorm": ("its norms stand before attention", "roberta"),
    "gpt_neo": ("its layers see a window of tokens in turn", "gpt2"),
    "gpt_neox": (f"{ROTARY}, and attention and feed-forward run in parallel", "gpt2"),
    "gptj": (f"{ROTARY}, and attention and feed-forward run in parallel", "gpt2"),
    "phi": (f"{ROTARY}, and attention and feed-forward run in parallel", "gpt2"),
    "bloom": ("its positions are a bias that falls with distance (ALiBi)", "gpt2"),
    "gpt_bigcode": ("its heads share keys and values", "gpt2"),
    "xlnet": ("its positions are relative within attention", "bert"),
    "longformer": ("its attention is sparse", "roberta"),
    "big_bird": ("its attention is sparse", "roberta"),
    "clip": ("it has a tower of images", "bert"),
    "t5": (f"{RMS}, and it has a decoder", "bert"),
    "mt5": (f"{RMS}, and it has a decoder", "xlm-roberta"),
    "bart": ("it has an encoder and a decoder", "roberta"),
    "mbart": ("it has an encoder and a decoder", "xlm-roberta"),
    "llama": (RMS, "gpt2"),
    "mistral": (RMS, "gpt2"),
    "qwen2": (RMS, "gpt2"),
    "qwen3": (RMS, "gpt2"),
    "gemma3_text": (RMS, "gpt2"),
}


def reason(model_type: str | None, supported: Sequence[str]) -> str:
    """Why such a model cannot be exported."""
    if model_type is None:
        return f"model_type is missing; supported are {', '.join(supported)}"
    if model_type in UNSUPPORTED:
        why, nearest = UNSUPPORTED[model_type]
        return (
            f"model_type {model_type!r} is not supported: {why}. The nearest that is: {nearest!r}"
        )
    return f"model_type is {model_type!r}; supported are {', '.join(supported)}"
