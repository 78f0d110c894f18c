"""Fields of the authors' files that decide what becomes of texts; what an export says of them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from addnorm.export import checking, sources
from addnorm.export.wishes import Wishes
from addnorm.export.words import texts
from addnorm.export.words.folder_tokenizer import NoTexts
from addnorm.service.engine.bundle import Bundle
from addnorm.service.wire.texts.texts import TextsToTokenize, Wish
from tests.support.families import made, save
from tests.support.sentence_transformers import tell
from tests.support.texts import checkpoint

PAIRS_TEMPLATE = (
    "{% for m in messages if m.role == 'query' %}a {{ m.content }}{% endfor %}"
    "{% for m in messages if m.role == 'document' %} b {{ m.content }}{% endfor %}"
)
TEXT, MESSAGE = {"method": "forward"}, {"method": "forward", "format": "flat"}
SETTINGS, PROGRAM = "sentence_bert_config.json", "config_sentence_transformers.json"


def with_template(folder: Path, **modalities: Any) -> Path:
    checkpoint(folder)
    (folder / "chat_template.jinja").write_text(PAIRS_TEMPLATE)
    return tell(folder, SETTINGS, modality_config=modalities) if modalities else folder


def test_every_text_through_a_template_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoTexts, match=r"sentence_bert_config.json has modality_config.message"):
        texts.read(with_template(tmp_path, text=TEXT, message=MESSAGE), 16)


@pytest.mark.parametrize("modalities", [{}, {"text": TEXT}])
def test_texts_alone_go_through_no_template(tmp_path: Path, modalities: Any) -> None:
    assert texts.read(with_template(tmp_path, **modalities), 16).pair_template is None


def test_an_export_says_what_is_not_served_and_what_is_not_read(tmp_path: Path) -> None:
    tell(checkpoint(tmp_path), PROGRAM, similarity_fn_name="dot", its_own=1)
    (tmp_path / "model_head.pkl").write_bytes(b"")
    source = sources.checkpoint(tmp_path, Wishes(own_reading=True))
    assert source.facts["similarity"] == "dot"
    assert [*checking.findings(source)][-3:] == [
        f"fields that are not read: {PROGRAM}: its_own",
        "other files, not served: model_head.pkl (SetFit's classifier)",
        "similarity: dot",
    ]


def test_an_export_says_that_scores_are_the_authors_with_raw_scores(tmp_path: Path) -> None:
    save(made("BertForSequenceClassification", num_labels=1), tmp_path)
    tell(tmp_path, PROGRAM, activation_fn="torch.nn.modules.linear.Identity")
    source = sources.checkpoint(tmp_path, Wishes(own_reading=True))
    assert "scores of pairs: the authors' scores are the logits" in [*checking.findings(source)][-1]


@pytest.mark.parametrize(
    ("template", "default", "expected"),
    [(None, "ask", "Q: "), (None, None, ""), (("a", "b", "c"), "ask", "")],
)
def test_a_classifiers_default_prompt_stands_before_pairs(
    template: Any, default: str | None, expected: str
) -> None:
    manifest = SimpleNamespace(
        prompts={"ask": "Q: "}, default_prompt_name=default, pair_template=template
    )
    bundle: Any = SimpleNamespace(manifest=manifest, tasks=["classify"])
    bundle.pair_prompt = Bundle.pair_prompt.func(bundle)
    model: Any = SimpleNamespace(bundle=bundle)
    pairs = [("who", "a"), ("who", "b"), "alone"]
    wish = Wish(field="documents", texts=pairs, takes_prompt=False)
    to_tokenize = TextsToTokenize.of(wish, model)
    whole_texts = to_tokenize.whole(to_tokenize.texts)
    assert whole_texts == [(f"{expected}who", "a"), (f"{expected}who", "b"), "alone"]
    assert whole_texts[0][0] is whole_texts[1][0]
    assert to_tokenize.sizes() == [len(expected) + 4, len(expected) + 4, 5]
