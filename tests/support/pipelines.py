"""transformers' own pipelines over tiny random models, with tokenizers trained on a few lines."""

import warnings
from functools import cache
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase

LINES = (
    "Maria Lindqvist moved from Göteborg to New York in March 1987, and worked at Harbor & Sons.",
    "The committee's report wasn't published; nobody in the café knew why it had been delayed.",
    "Dr. O'Neill paid $3.50 for tea, e-mailed anna.k@example.org and went home to Saint-Malo.",
    "Unbelievably, the re-opened railway between Zürich and Milano carries forty-two trains daily.",
)
UNSEEN = "Xylophonists in Ulaanbaatar quizzed 東京 and Żółw about jazz ☃ and fjords."
TEXT = " ".join((*LINES, UNSEEN))
# prefixes of classes of transformers: subwords marked, bytes, pieces of unigrams
FAMILIES = ("Bert", "Roberta", "XLMRoberta")
SIZE = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 32, "max_position_embeddings": 400}  # fmt: skip


@cache
def tokenizer(family: str) -> PreTrainedTokenizerBase:
    untrained = getattr(transformers, f"{family}Tokenizer")()
    made: PreTrainedTokenizerBase = untrained.train_new_from_iterator(
        LINES, vocab_size=320, show_progress=False
    )
    return made


def model(family: str, head: str, **config: Any) -> PreTrainedModel:
    """Its weights are large enough that its answers differ from token to token."""
    torch.manual_seed(0)
    tokenizer_ = tokenizer(family)
    made = getattr(transformers, f"{family}Config")(
        vocab_size=len(tokenizer_),
        pad_token_id=tokenizer_.pad_token_id,
        initializer_range=0.5,
        **SIZE,
        **config,
    )
    model: PreTrainedModel = getattr(transformers, family + head)(made).eval()
    return model


def pipeline(task: str, model: PreTrainedModel, family: str, **options: Any) -> Any:
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    return transformers.pipeline(task, model=model, tokenizer=tokenizer(family), **options)


def answer(pipeline: Any, *inputs: Any, **options: Any) -> Any:
    with warnings.catch_warnings():  # of tokenizers that do not mark words
        warnings.simplefilter("ignore", UserWarning)
        return pipeline(*inputs, **options)


def logits(model: PreTrainedModel, family: str, *texts: Any) -> Any:
    """`[tokens, labels]` or `[labels]`."""
    with torch.no_grad():
        return model(**tokenizer(family)(*texts, return_tensors="pt")).logits[0].numpy()
