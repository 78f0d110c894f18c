"""The package gliner's answers of the folders of tests/support/gliner_folders.py. Run it to make
gliner.json.

make build/gliner/ready
PYTHONPATH=build/gliner python -m tests.golden.gliner > tests/golden/gliner.json
"""

import json
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from addnorm.export.certificate import authors, extraction
from addnorm.export.reference.program import silence_libraries
from tests.support import gliner_folders
from tests.support.gliner_folders import MAX_TOKENS, MAX_WORDS

# what the certificate asks, and texts that try more: no words, words without tokens, many names
TEXTS = (
    *authors.SENTENCES, *authors.SCRIPTS, " \n", "Ada", "\u200b Ada lives\u200b in London .",
    "the train to London leaves at nine and Ada lives in London",
)  # fmt: skip


def answers() -> dict[str, Any]:
    """The first and last character, label and score of each name, by kind and question."""
    import gliner
    from gliner import GLiNER

    made: dict[str, Any] = {"gliner": gliner.__version__}
    for kind in gliner_folders.FIELDS:
        with TemporaryDirectory() as root, silence_libraries():
            folder = gliner_folders.write(Path(root, kind), kind)
            model, rows = GLiNER.from_pretrained(str(folder), map_location="cpu"), dict[str, Any]()
            for text, labels, threshold, flat in product(
                TEXTS, extraction.LABELS, extraction.THRESHOLDS, extraction.FLAT
            ):
                processor = model.data_processor
                words = [word for word, _, _ in processor.words_splitter(text)]
                prompted, _ = processor.prepare_inputs([words], [list(labels)])
                ids = processor.transformer_tokenizer(prompted, is_split_into_words=True)
                num_tokens = len(ids["input_ids"][0])
                if num_tokens > MAX_TOKENS or len(words) > MAX_WORDS:
                    continue  # which the package cuts
                names = model.predict_entities(
                    text, list(labels), flat_ner=flat, threshold=threshold
                )
                rows[gliner_folders.key(text, labels, threshold, flat)] = [
                    [name["start"], name["end"], labels.index(name["label"]),
                     float(f"{name['score']:.7g}")]
                    for name in names
                ]  # fmt: skip
            made[kind] = rows
    return made


if __name__ == "__main__":
    print(json.dumps(answers(), separators=(",", ":")))
