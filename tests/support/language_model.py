"""A random language model with a byte-level tokenizer, as transformers saves them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from tests.support.families import made, save

END = "<|endoftext|>"


def tokenizer(prose: Iterable[str], vocab_size: int) -> Tokenizer:
    """Trained on the prose. END is its first id; then come the 256 bytes."""
    trained = Tokenizer(BPE())
    trained.pre_tokenizer = ByteLevel(add_prefix_space=False)
    trained.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator(prose, trainer)
    return trained


def checkpoint(folder: Path, prose: Iterable[str], **changed: Any) -> Path:
    """changed: of the model's configuration; with `vocab_size`."""
    trained = tokenizer(prose, changed["vocab_size"])
    save(made("GPT2LMHeadModel", **changed), folder)
    fast = PreTrainedTokenizerFast(tokenizer_object=trained, eos_token=END)
    fast.save_pretrained(folder)
    return folder
