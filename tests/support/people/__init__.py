"""Modules as people write them: each function makes one, small, with the weights it begins with."""

from collections.abc import Callable

from torch import nn

from tests.support.people import encoders, language_models, seeds

TUTORIALS: dict[str, Callable[[], nn.Module]] = {
    "nn.TransformerEncoder, classifier": encoders.Classifier,
    "nn.TransformerEncoder, seq first": encoders.SequenceFirst,
    "nn.TransformerEncoder, pre": encoders.PreNorm,
    "nn.MultiheadAttention in own layers": encoders.OwnLayers,
    "Annotated Transformer": encoders.Annotated,
    "BERT from scratch": encoders.Bert,
    "fused by head": encoders.FusedByHead,
    "einsum": encoders.Einsum,
    "nanoGPT": language_models.NanoGPT,
    "minGPT": language_models.MinGPT,
    "GPT in one lecture": language_models.Lecture,
    "LLMs from scratch": language_models.FromScratch,
    "seed: post with an own norm": seeds.Post,
    "seed: single": seeds.Single,
    "seed: scale and shift": seeds.ScaleShift,
}
