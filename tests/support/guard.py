"""A guard of two labels, taught in seconds: one word is an attack, whatever stands around it."""

from pathlib import Path

import torch

from tests.support.families import made, save
from tests.support.texts import WORDS, tokenizer

LABELS = ("SAFE", "ATTACK")
ATTACK, HARMLESS = "nothing", ("a", "b", "c", "the", "same", "text", "costs")
MAX_TOKENS, NUM_STEPS, NUM_TEXTS, LONGEST = 40, 120, 32, 38


def checkpoint(folder: Path) -> Path:
    """Texts are cut to MAX_TOKENS, all positions."""
    words = tokenizer()
    words.enable_padding(length=MAX_TOKENS)
    words.enable_truncation(MAX_TOKENS)
    labels = dict(enumerate(LABELS))
    shape = {"vocab_size": len(WORDS), "num_hidden_layers": 1}
    model = made("BertForSequenceClassification", id2label=labels, **shape)
    draws = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(NUM_STEPS):
        texts = list[str]()
        for index in range(NUM_TEXTS):
            num_words, place = torch.randint(1, LONGEST, (2,), generator=draws).tolist()
            picks = torch.randint(len(HARMLESS), (num_words,), generator=draws).tolist()
            text = [HARMLESS[pick] for pick in picks]
            if index % 2:
                text[place % num_words] = ATTACK
            texts.append(" ".join(text))
        encodings = words.encode_batch(texts)
        inputs = {
            "input_ids": torch.tensor([encoding.ids for encoding in encodings]),
            "attention_mask": torch.tensor([encoding.attention_mask for encoding in encodings]),
        }
        model(**inputs, labels=torch.arange(NUM_TEXTS) % 2).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    save(model, folder)
    words.no_padding()
    words.save(str(folder / "tokenizer.json"))
    return folder
