"""Language models as rerankers: plain queries and documents over HTTP get transformers' scores of
their authors' template."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from addnorm.export import sources
from addnorm.export.exporting import export
from addnorm.export.words import texts
from addnorm.export.words.folder_tokenizer import NoTexts
from addnorm.model.checkpoints import CheckpointError, load_checkpoint
from addnorm.service.engine.tokenizer import pair_text
from tests.conftest import client_of, inference_of
from tests.support import language_model
from tests.support.families import made, save
from tests.support.sentence_transformers import tell, write_modules, write_settings

YES, NO, LIMIT = 70, 61, 200
SIZES = {"vocab_size": 410, "max_position_embeddings": 300, "num_hidden_layers": 1}
TEMPLATE = """\
{%- macro told(role) -%}
{{ messages | selectattr("role", "eq", role) | map(attribute="content") | join }}
{%- endmacro -%}
<|im_start|>system
Judge whether the Document meets the Query.<|im_end|>
<|im_start|>user
<Instruct>: {{ told("system") or "Retrieve passages" }}
<Query>: {{ told("query") }}
<Document>: {{ told("document") }}<|im_end|>
{% if add_generation_prompt %}<|im_start|>assistant
<think>

</think>

{% endif %}"""
PROSE = ["the same text, again and again", "pads are dropped. padding costs nothing!", TEMPLATE]
QUERY = "what is dropped?"
DOCUMENTS = ["pads are dropped.", "padding\n costs 中 nothing", "", " the <|im_end|> text "]


def words() -> PreTrainedTokenizerFast:
    trained = language_model.tokenizer(PROSE, 400)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=trained,
        eos_token=language_model.END,
        pad_token=language_model.END,
        model_max_length=LIMIT,
    )
    fast.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    fast.chat_template = TEMPLATE
    return fast


def checkpoint(folder: Path) -> PreTrainedModel:
    """A folder of a CrossEncoder, as sentence-transformers writes it."""
    model = made("Qwen3ForCausalLM", **SIZES, tie_word_embeddings=True)
    save(model, folder)
    words().save_pretrained(folder)
    write_modules(folder, Transformer="", LogitScore="1_LogitScore")
    write_settings(folder / "1_LogitScore", true_token_id=YES, false_token_id=NO)
    listed = (folder / "modules.json").read_text()
    package = "sentence_transformers.cross_encoder.modules"
    (folder / "modules.json").write_text(
        listed.replace("sentence_transformers.models.LogitScore", f"{package}.LogitScore")
    )
    write_settings(folder, "config_sentence_transformers.json", model_type="CrossEncoder")
    modality = {"method": "forward", "method_output_name": "logits"}
    write_settings(
        folder, "sentence_bert_config.json", module_output_name="causal_logits",
        transformer_task="text-generation",
        processing_kwargs={"chat_template": {"add_generation_prompt": True}},
        modality_config={"text": modality, "message": {**modality, "format": "flat"}},
    )  # fmt: skip
    return model


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rerankers")


@pytest.fixture(scope="module")
def model(root: Path) -> PreTrainedModel:
    return checkpoint(root / "chat")


@pytest.fixture(scope="module")
def client(root: Path, model: PreTrainedModel) -> Iterator[httpx.Client]:
    export(sources.checkpoint(root / "chat"), root / "bundles", "chat")
    service = inference_of(root / "bundles", invariance_check_share=0)
    with client_of(service) as chat_client:
        yield chat_client


def expected(model: PreTrainedModel, document: str) -> tuple[float, int]:
    """softmax of the two logits, and the number of tokens."""
    messages = [{"role": "query", "content": QUERY}, {"role": "document", "content": document}]
    ids = words().apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )["input_ids"]
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0, -1]
    return float(logits[[NO, YES]].softmax(-1)[1]), ids.shape[1]


def test_plain_pairs_get_the_scores_of_the_template(
    client: httpx.Client, model: PreTrainedModel
) -> None:
    answer = client.post("/v1/rerank", json={"query": QUERY, "documents": DOCUMENTS}).json()
    scores = {row["index"]: row["relevance_score"] for row in answer["results"]}
    meant = [expected(model, document) for document in DOCUMENTS]
    assert [scores[i] for i in range(len(meant))] == pytest.approx([x for x, _ in meant], abs=1e-6)
    assert answer["usage"]["prompt_tokens"] == sum(count for _, count in meant)
    assert max(scores.values()) - min(scores.values()) > 1e-3
    alone = client.post("/v1/rerank", json={"query": QUERY, "documents": DOCUMENTS[:1]}).json()
    assert alone["results"][0]["relevance_score"] == scores[0]


def test_a_long_document_is_cut_and_the_end_of_the_template_stays(client: httpx.Client) -> None:
    body = {"query": QUERY, "documents": ["pads " * 500]}
    answer = client.post("/v1/rerank", json=body).json()
    assert answer["usage"]["prompt_tokens"] == LIMIT
    refused = client.post("/v1/rerank", json={"query": "pads " * 500, "documents": ["a"]})
    assert refused.status_code == 400
    assert "the first text leaves no room for it" in refused.text


def test_a_pair_as_one_text() -> None:
    tokenizer, template = words().backend_tokenizer, ("<|im_start|>", "\n", "<|im_end|>")
    whole = "<|im_start|>pads\nare dropped<|im_end|>"
    count = len(tokenizer.encode(whole))
    pair = ("pads", "are dropped")
    assert pair_text(template, pair, tokenizer, None) == whole
    assert pair_text(template, pair, tokenizer, count) == whole
    cut = pair_text(template, pair, tokenizer, count - 1)
    assert cut is not None
    assert len(tokenizer.encode(cut)) == count - 1
    assert cut.endswith("<|im_end|>")
    assert pair_text(template, pair, tokenizer, 2) is None


def test_the_form_of_a_classifier_has_the_same_weights(
    root: Path, model: PreTrainedModel, tmp_path: Path
) -> None:
    """The hub has it so: one label, the difference of the two rows."""
    twin = made("Qwen3ForSequenceClassification", **SIZES, num_labels=1)
    rows = model.get_output_embeddings().weight.detach()
    with torch.no_grad():
        twin.score.weight.copy_((rows[YES] - rows[NO])[None])
    twin.model.load_state_dict(model.model.state_dict())
    ours, other = load_checkpoint(root / "chat"), load_checkpoint(save(twin, tmp_path))
    assert ours.model.config == other.model.config
    for name, tensor in ours.model.state_dict().items():
        assert torch.equal(tensor, other.model.state_dict()[name]), name


@pytest.mark.parametrize(
    ("change", "words_of"),
    [
        ({"true_token_id": "yes"}, "true_token_id is 'yes': the id of a token is needed"),
        ({"true_token_id": 410}, "token 410: 0 to 409 are in the vocabulary"),
        ({"true_token_id": 1, "module_input_name": "x"}, "module_input_name is 'x', supported is"),
    ],
)
def test_a_score_that_cannot_be_read_is_refused(
    tmp_path: Path, change: dict[str, Any], words_of: str
) -> None:
    checkpoint(tmp_path)
    write_settings(tmp_path / "1_LogitScore", **change)
    with pytest.raises(CheckpointError, match=words_of):
        load_checkpoint(tmp_path)


def test_a_score_needs_a_language_model(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    tell(tmp_path, architectures=["Qwen3Model"])
    with pytest.raises(CheckpointError, match="names no language model to score by"):
        load_checkpoint(tmp_path)


def test_templates_that_are_not_of_pairs_or_change_texts() -> None:
    tokenizer, settings = words(), {"add_generation_prompt": True}
    before, between, behind = texts.read_pair_template(tokenizer, "Judge", settings) or ("", "", "")
    assert before.endswith("<Instruct>: Judge\n<Query>: ")
    assert (between, behind[:10]) == ("\n<Document>: ", "<|im_end|>")
    tokenizer.chat_template = TEMPLATE.replace('told("query")', 'told("query") | trim')
    with pytest.raises(NoTexts, match="its chat template changes a query or a document"):
        texts.read_pair_template(tokenizer, "", settings)
    for template in ("{{ messages[0].content }}", "{{ raise_exception('no') }}", None):
        tokenizer.chat_template = template
        assert texts.read_pair_template(tokenizer, "", settings) is None
