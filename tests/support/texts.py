"""A BERT checkpoint so small that it is exported in seconds, with a tokenizer of a few words."""

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertModel
from transformers.utils.logging import disable_progress_bar

from tests.support.sentence_transformers import write_modules, write_settings

WORDS = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "pads", "are", "drop", "##ped", "padding", "costs",
    "nothing", "token", "##ize", "##s", ".", ",", "a", "b", "c", "the", "same", "text", "[MASK]",
]  # fmt: skip
MAX_POSITIONS, MAX_TEXT_TOKENS, D_MODEL = 16, 12, 32
TEXT_MODEL = "all-minilm-l6-v2"  # whose place it takes in the examples
LONG = "a " * 40  # 42 tokens


def tokenizer() -> Tokenizer:
    """Its file pads to 128 and truncates to 8, as those of sentence-transformers do."""
    made = Tokenizer(
        WordPiece({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    made.normalizer, made.pre_tokenizer = BertNormalizer(), BertPreTokenizer()
    around = [(word, WORDS.index(word)) for word in ("[CLS]", "[SEP]")]
    made.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=around
    )
    made.add_special_tokens([word for word in WORDS if word.startswith("[")])
    made.enable_padding(length=128)
    made.enable_truncation(8)
    return made


def library(max_length: int | None = None) -> Tokenizer:
    made = tokenizer()
    made.no_padding()
    made.no_truncation()
    if max_length:
        made.enable_truncation(max_length)
    return made


def ids_of(texts: Sequence[str], max_length: int | None = None) -> list[list[int]]:
    return [encoding.ids for encoding in library(max_length).encode_batch(list(texts))]


def checkpoint(folder: Path, d_model: int = D_MODEL, n_layers: int = 1) -> Path:
    """A Hugging Face folder as sentence-transformers writes it: mean pooling, vectors of length 1.

    Its authors cut texts to MAX_TEXT_TOKENS, fewer than the model has positions.
    """
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS), hidden_size=d_model, num_hidden_layers=n_layers,
        num_attention_heads=2,
        intermediate_size=2 * d_model,
        max_position_embeddings=MAX_POSITIONS,
    )  # fmt: skip
    disable_progress_bar()
    BertModel(config).save_pretrained(folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    write_settings(folder, "sentence_bert_config.json", max_seq_length=MAX_TEXT_TOKENS)
    write_modules(folder, Transformer="", Pooling="1_Pooling", Normalize="2_Normalize")
    write_settings(
        folder / "1_Pooling", pooling_mode_mean_tokens=True, word_embedding_dimension=d_model
    )
    return folder
