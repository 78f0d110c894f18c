"""Modules as people write them: each function makes one, small, with the weights it begins with."""

from collections.abc import Callable

from torch import nn

from tests.support.people import encoders, language_models, seeds
from tests.support.people.examples import example

NanoGPT = example("nano_gpt")["NanoGPT"]
Classifier = example("torch_encoder")["Classifier"]
Annotated = example("annotated_encoder")["Annotated"]
TUTORIALS: dict[str, Callable[[], nn.Module]] = {
    "nn.TransformerEncoder, classifier": Classifier,
    "nn.TransformerEncoder, seq first": encoders.SequenceFirst,
    "nn.TransformerEncoder, pre": encoders.PreNorm,
    "nn.MultiheadAttention in own layers": encoders.OwnLayers,
    "Annotated Transformer": Annotated,
    "segments": example("segments")["Pairs"],
    "fused by head": encoders.FusedByHead,
    "einsum": encoders.Einsum,
    "nanoGPT": NanoGPT,
    "minGPT": language_models.MinGPT,
    "GPT in one lecture": example("lecture_gpt")["Lecture"],
    "LLMs from scratch": language_models.FromScratch,
    "seed: post with an own norm": seeds.Post,
    "seed: single": seeds.Single,
    "seed: scale and shift": seeds.ScaleShift,
}
