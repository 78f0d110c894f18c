"""What is certified equals the forward of the person whose model it is."""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from addnorm.export import ExportError, export_bundle, verify_bundle
from addnorm.export.certificate.forward import refuse_unlike
from addnorm.export.certificate.parity import compare_answers
from addnorm.export.certificate.served import CertificationError
from addnorm.export.checking import check
from addnorm.export.opening import InMemory
from addnorm.export.reference.original import Original
from addnorm.export.wishes import NO_WISHES
from addnorm.model.config import Config, HeadConfig, Pick
from addnorm.model.transformer import Transformer
from addnorm.service.engine.manifest import Limits
from addnorm.service.engine.model import Model
from tests.support.exports import source_of
from tests.support.families import made
from tests.support.texts import WORDS, tokenizer

CONFIG = Config(
    vocab_size=40, d_model=16, n_heads=4, d_ff=32, n_layers=1, max_positions=12, activation="relu"
)  # fmt: skip
NAMES = {
    "layers.": "blocks.",
    "self_attn.in_proj_": "attention.qkv.",
    "self_attn.out_proj.": "attention.out.",
    "linear1.": "ffn.up.",
    "linear2.": "ffn.down.",
    "norm1.weight": "norm1.gamma",
    "norm1.bias": "norm1.beta",
    "norm2.weight": "norm2.gamma",
    "norm2.bias": "norm2.beta",
}


class Encoder(nn.Module):
    """PyTorch's own layers with their defaults. scale: of attention's weights; with those that they
    begin with, attention is nearly uniform, and the number of heads does not show."""

    def __init__(self, scale: float = 4.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.positions = nn.Embedding(40, 16), nn.Embedding(12, 16)
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        with torch.no_grad():
            self.encoder.layers[0].self_attn.in_proj_weight.mul_(scale)  # type: ignore[operator, union-attr]

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        return self.encoder(x)  # type: ignore[no-any-return]


def port(theirs: Encoder, config: Config) -> Transformer:
    weights = {"tokens.weight": theirs.tokens.weight, "positions.weight": theirs.positions.weight}
    for key, tensor in theirs.encoder.state_dict().items():
        for old, new in NAMES.items():
            key = key.replace(old, new)
        weights[key] = tensor
    model = Transformer(config, "padded")
    model.load_state_dict(weights)
    return model


def test_a_right_port_is_compared_with_its_module_which_stays_as_it_was(tmp_path: Path) -> None:
    encoder = Encoder().train()
    model, before = port(encoder, CONFIG), copy.deepcopy(encoder.state_dict())
    state = torch.get_rng_state()
    bundle = export_bundle(model, tmp_path, "own", reference=encoder)
    assert encoder.training
    assert encoder.encoder.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], tensor) for name, tensor in encoder.state_dict().items())
    assert bundle.certificate
    record = bundle.certificate["compared_with"]
    assert (record["kind"], record["name"], record["output"]) == (
        "reference", "Encoder", "activations",
    )  # fmt: skip
    cases = {check["case"] for check in bundle.certificate["checks"]}
    assert {"reference, ragged", "reference, pads left", "reference, length 1"} <= cases
    with pytest.raises(
        ExportError, match="own/1 was compared with the reference Encoder: give the same"
    ):
        verify_bundle(bundle.path, port(encoder, CONFIG))
    again = verify_bundle(bundle.path, port(encoder, CONFIG), reference=encoder)
    assert again.certificate == bundle.certificate


@pytest.mark.parametrize(
    "changed",
    [{"activation": "gelu"}, {"n_heads": 2}, {"causal": True}, {"block": "pre"}, {"eps": 1e-2}],
    ids=str,
)
def test_a_wrong_port_is_refused(tmp_path: Path, changed: dict[str, Any]) -> None:
    encoder = Encoder()
    with pytest.raises(
        ExportError, match=r"differs from the reference: for \d+ tokens, activations differ by"
    ):
        export_bundle(port(encoder, replace(CONFIG, **changed)), tmp_path, "own", reference=encoder)
    assert not list(tmp_path.iterdir())


def of_head(theirs: Encoder, pick: Pick) -> tuple[Transformer, nn.Linear]:
    """Their encoder with a head, as our model; and the head."""
    head = nn.Linear(16, 5)
    model = Transformer(replace(CONFIG, heads={"logits": HeadConfig(pick, 5)}), "padded").eval()
    model.load_state_dict({**port(theirs, CONFIG).state_dict(), **_head(head)})
    return model, head


ANSWERS: dict[str, tuple[Pick, Callable[[Tensor], Any]]] = {
    "of every token": ("every", lambda rows: rows[None]),
    "without the batch's axis": ("every", lambda rows: rows),
    "of the last token alone": ("every", lambda rows: rows[-1:]),
    "of the first, in a tuple": ("first", lambda rows: (rows[0], "more")),
    "as transformers": ("first", lambda rows: {"hidden_states": 1, "logits": rows[:1]}),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_heads_are_compared_by_the_shape_of_the_answer(name: str) -> None:
    pick, answer = ANSWERS[name]
    encoder = Encoder().eval()
    own, head = of_head(encoder, pick)
    original = Original(lambda ids: answer(head(encoder(ids)[0])), own.config)
    assert original.compared.output == "logits"
    limits = Limits(max_positions=12, vocab_size=40)
    refuse_unlike(own, original, limits)
    own.heads["logits"].linear.bias.data += 0.01  # type: ignore[union-attr, operator]
    with pytest.raises(
        CertificationError, match="differs from the reference: for 3 tokens, logits differ"
    ):
        refuse_unlike(own, original, limits)


def test_what_is_served_in_each_precision_is_compared_with_the_module(tmp_path: Path) -> None:
    encoder = Encoder(scale=1.0).eval()
    own, head = of_head(encoder, "every")
    bundle = export_bundle(
        own, tmp_path, "own", precisions=("fp32", "fp16"), reference=lambda ids: head(encoder(ids))
    )
    assert bundle.certificate
    precisions = {
        c["precision"] for c in bundle.certificate["checks"] if "reference, " in c["case"]
    }
    assert precisions == {"fp32", "fp16"}
    other = Original(lambda ids: head(encoder(ids)) + 0.01, own.config)
    with pytest.raises(CertificationError, match=r"checks failed; reference, length 1: logits"):
        compare_answers(Model(bundle), replace(source_of(own), originals=(other,)))


def _head(head: nn.Linear) -> dict[str, Tensor]:
    return {f"heads.logits.linear.{name}": tensor for name, tensor in head.state_dict().items()}


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (
            lambda ids: torch.rand(1, ids.shape[1], 16),
            "gives two different answers to the same sequence",
        ),
        (
            lambda ids: torch.zeros(1, ids.shape[1], 7),
            "answers with 7 numbers, but the activations have",
        ),
        (
            lambda ids: torch.zeros(3, 3, 3),
            r"with the shape \[3, 3, 3\]: it must be \[1, 3, width\] or",
        ),
        (lambda ids: torch.zeros(1, 3, 16).double(), "with torch.float64: it must return a tensor"),
        (lambda ids: None, "with NoneType: it must return a tensor"),
        (lambda ids: ids.nowhere, "fails on a sequence of 3 tokens: AttributeError"),
    ],
)
def test_a_reference_that_says_nothing_is_refused(
    tmp_path: Path, reference: Any, message: str
) -> None:
    with pytest.raises(ExportError, match=message):
        export_bundle(port(Encoder(), CONFIG), tmp_path, "own", reference=reference)


@pytest.mark.parametrize(
    ("class_name", "outputs"),
    [
        ("RobertaForSequenceClassification", ["logits", "activations"]),
        ("GPT2Model", ["activations"]),
    ],
)
def test_a_model_of_transformers_is_its_own_reference(class_name: str, outputs: list[str]) -> None:
    model = made(class_name).train()
    with InMemory(model).packed(NO_WISHES) as source:
        assert [*check(source)]
        record = source.compared_with()
        assert record["name"].split()[0] == f"transformers.{class_name}"
        assert record["outputs"] == outputs
        assert source.origin["module"] == class_name
    assert model.training


def test_a_model_of_transformers_takes_texts_with_a_tokenizer(tmp_path: Path) -> None:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    tokenizer().save(str(folder / "tokenizer.json"))
    model = made("BertModel", vocab_size=len(WORDS), num_hidden_layers=1)
    bundle = export_bundle(model, tmp_path, "own", tokenizer=folder, pooling="first")
    assert (bundle.manifest.pooling, "tokenizer.json" in bundle.manifest.files) == ("first", True)
    again = verify_bundle(bundle.path, model, tokenizer=folder)
    assert again.certificate == bundle.certificate


@pytest.mark.filterwarnings("ignore")  # of another library's releases
@pytest.mark.parametrize("kind", ["SentenceTransformer", "CrossEncoder"])
def test_a_model_of_sentence_transformers_brings_its_tokenizer(tmp_path: Path, kind: str) -> None:
    library = pytest.importorskip("sentence_transformers")
    layers = pytest.importorskip("sentence_transformers.models")
    from transformers import PreTrainedTokenizerFast

    is_pipeline = kind == "SentenceTransformer"
    class_name = "BertModel" if is_pipeline else "BertForSequenceClassification"
    sizes = {"vocab_size": len(WORDS), "num_hidden_layers": 1}
    model = made(class_name, **sizes, **({} if is_pipeline else {"num_labels": 1}))
    model.save_pretrained(tmp_path / "own")
    tokenizer_ = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer(), pad_token="[PAD]", unk_token="[UNK]"
    )
    tokenizer_.save_pretrained(tmp_path / "own")
    if is_pipeline:
        first = layers.Transformer(str(tmp_path / "own"))
        width = first.get_word_embedding_dimension()
        modules = [first, layers.Pooling(width, "max"), layers.Normalize()]
        model = library.SentenceTransformer(modules=modules)
    else:
        model = library.CrossEncoder(str(tmp_path / "own"))
    with InMemory(model).packed(NO_WISHES) as source:
        assert [*check(source)]
        record = source.compared_with()
        assert source.facts["normalize"] is is_pipeline
    assert record["name"].split()[0] == f"sentence_transformers.{kind}"
    assert record["outputs"] == ["pooled" if is_pipeline else "logits", "activations"]
    assert record["texts"] == (["embed"] if is_pipeline else ["rerank", "relevance", "classify"])
    if is_pipeline:
        bundle = export_bundle(model, tmp_path / "bundles", "own")
        assert bundle.manifest.normalize
        assert verify_bundle(bundle.path, model).certificate == bundle.certificate


def test_an_answer_without_its_batch_axis_is_of_tokens_at_every_length() -> None:
    encoder = Encoder().eval()
    original = Original(lambda ids: encoder(ids).squeeze(), CONFIG)
    assert [original.rows([1] * length, None).shape for length in (1, 2, 4)] == [
        (length, CONFIG.d_model) for length in (1, 2, 4)
    ]
