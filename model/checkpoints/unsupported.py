"""Families that cannot be exported: why, and the nearest one that can."""

from collections.abc import Sequence

PARALLEL = "its attention and feed-forward run in parallel"
T5 = "its scores are not divided by the root of a head's dimensions, and it has a decoder"
UNSUPPORTED = {  # model_type -> reason, nearest
    "deberta": ("its queries and values alone have a bias", "deberta-v2"),
    "esm": ("embeddings are scaled by the share of masked tokens in their sequence", "bert"),
    "xlm-roberta-xl": ("its norms stand before attention, after an embedding", "xlm-roberta"),
    "roberta-prelayernorm": ("its norms stand before attention", "roberta"),
    "gpt_neo": ("its scores are not divided by the root of a head's dimensions", "gpt2"),
    "gpt_neox": (PARALLEL, "gpt2"),
    "gptj": (PARALLEL, "gpt2"),
    "phi": (PARALLEL, "gpt2"),
    "bloom": ("its positions are a bias that falls with distance (ALiBi)", "gpt2"),
    "gpt_bigcode": ("its heads share keys and values", "gpt2"),
    "xlnet": ("its positions are relative within attention", "bert"),
    "longformer": ("its attention is sparse", "roberta"),
    "big_bird": ("its attention is sparse", "roberta"),
    "clip": ("it has a tower of images", "bert"),
    "t5": (T5, "bert"),
    "mt5": (T5, "xlm-roberta"),
    "bart": ("it has an encoder and a decoder", "roberta"),
    "mbart": ("it has an encoder and a decoder", "xlm-roberta"),
    "llama": ("there is no table of its weights", "qwen3"),
    "mistral": ("there is no table of its weights", "qwen3"),
    "qwen2": ("there is no table of its weights", "qwen3"),
    "gemma3_text": ("its blocks have norms after attention and feed-forward too", "qwen3"),
}
ELSEWHERE = ("gemma3_text", "llama", "mistral", "qwen2")


def reason(model_type: str | None, supported: Sequence[str]) -> str:
    """Why such a model cannot be exported."""
    if model_type is None:
        return f"model_type is missing; supported are {', '.join(supported)}"
    if model_type in UNSUPPORTED:
        why, nearest = UNSUPPORTED[model_type]
        served = ". text-embeddings-inference serves it" if model_type in ELSEWHERE else ""
        return (
            f"model_type {model_type!r} is not supported: {why}. The nearest that is:"
            f" {nearest!r}{served}"
        )
    return f"model_type is {model_type!r}; supported are {', '.join(supported)}"
