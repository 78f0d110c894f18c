"""What does nothing in the trial is refused by name and line; a pad is found however it is told."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from addnorm.export import ExportError, export_bundle
from addnorm.export.recognition.recognize import recognize
from addnorm.export.reference.trace import Unrecognized
from tests.support.people.encoders import D, H, OwnLayers
from tests.support.people.unexplained import CHANGES, PLACES, Change, Plain, T, is_told

CASES = [  # the product of operators and places is run by `pytest -m modules`
    *(
        (PLACES[index % len(PLACES)], change, name)
        for index, (name, change) in enumerate(CHANGES["operators on rows"].items())
    ),
    *(("ids", change, f"ids: {name}") for name, change in CHANGES["operators on ids"].items()),
    *(("embeddings", change, f"length: {name}") for name, change in CHANGES["lengths"].items()),
]


@pytest.mark.parametrize(("place", "change", "name"), CASES, ids=[case[2] for case in CASES])
def test_an_operator_that_does_nothing_in_the_trial_is_refused(
    place: str, change: Change, name: str
) -> None:
    with pytest.raises(Unrecognized) as refused:
        recognize(Plain(place, change), None, None)
    assert is_told(str(refused.value))


def test_the_refusal_names_operator_line_and_way_on() -> None:
    with pytest.raises(
        Unrecognized,
        match=r"^tanh, at unexplained\.py:\d+ does not belong to the recognized model: ",
    ):
        recognize(Plain("sum", CHANGES["operators on rows"]["softcap"]), None, None)


@pytest.mark.parametrize("added", [False, True], ids=["filled", "added"])
@pytest.mark.parametrize(("value", "hides"), [(-20, False), (-1e3, False), (-1e4, True)])
def test_a_causal_mask_hides_loud_tokens_too(value: float, hides: bool, added: bool) -> None:
    def mask(scores: Tensor) -> Tensor:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return scores + later * value if added else scores.masked_fill(later, value)

    if hides:
        assert recognize(Plain("scores", mask), None, None).model.config.causal
    else:
        with pytest.raises(Unrecognized, match=r"^attention: nothing tried agrees"):
            recognize(Plain("scores", mask), None, None)


REAL: dict[str, Callable[[Tensor], Tensor]] = {
    "!=": lambda ids: ids != 0,
    "==": lambda ids: ~ids.eq(0),
    "counted": lambda ids: (ids != 0).cumsum(1) * (ids != 0),
}


@pytest.mark.parametrize("how", REAL)
def test_a_pad_is_found_by_a_comparison_with_its_id(how: str) -> None:
    assert recognize(Plain(pad=REAL[how]), None, None).pad == 0


def test_an_id_that_is_told_from_others_and_is_no_pad_is_refused() -> None:
    cleared = lambda ids: ids != 77  # noqa: E731
    assert recognize(Plain(pad=cleared), None, None).pad == 77

    class Cleared(Plain):
        def forward(self, ids: Tensor) -> Tensor:
            self.change = lambda x: x.masked_fill((ids == 77)[..., None], 0.0)
            return super().forward(ids)

    with pytest.raises(
        Unrecognized, match=r"treats some token ids differently: 77 \(eq, at .*py:\d+\)"
    ):
        recognize(Cleared("embeddings"), None, None)
    with pytest.raises(
        Unrecognized, match=r"differently: (77|0) .*, (77|0) \(.*one id can count as padding"
    ):
        recognize(Cleared("embeddings", pad=REAL["!="]), None, None)


class Counted(nn.Module):
    """Places are counted from the tokens that are no pads, from 2 on; the table has two rows
    more."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.own, self.places = OwnLayers(), nn.Embedding(34, D, padding_idx=1)

    def forward(self, ids: Tensor) -> Tensor:
        real = ids.ne(1)
        x = self.own.token_emb(ids) + self.places(real.cumsum(1) * real + 1)
        block = self.own.block
        x = block.layernorm1(x + block.att(x, x, x, key_padding_mask=~real)[0])
        return block.layernorm2(x + block.ffn(x))


def test_places_that_are_counted_from_ids_are_read() -> None:
    recognition = recognize(Counted(), None, None)
    assert (recognition.pad, recognition.model.config.max_positions) == (1, 32)
    module = Counted()
    assert torch.equal(recognition.model.positions.weight, module.places.weight[2:])


class Either(nn.Module):
    """PyTorch's layers without batch_first, and nothing that says along which axis tokens lie."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(50, D)
        layer = nn.TransformerEncoderLayer(D, H, 48)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(D, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.encoder(self.tokens(ids)))


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_the_axis_of_tokens_is_asked_for_where_both_run(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"\[1, S\] and \[S, 1\].*: set batch_first=False"):
        export_bundle(Either(), tmp_path, "own")
    with pytest.raises(ExportError, match="attention is not over the 7 tokens of a sequence"):
        export_bundle(Either(), tmp_path, "own", batch_first=True)
    assert not list(tmp_path.iterdir())
    assert recognize(Either(), None, 20, batch_first=False).ask.turned


def test_a_module_that_keeps_a_tensor_of_training_is_recognized() -> None:
    class Keeps(Plain):
        def at(self, place: str, x: Tensor) -> Tensor:
            if place == "probabilities":
                self.kept = x
            return super().at(place, x)

    module = Keeps()
    module(torch.tensor([[3, 4]])).sum().backward()
    assert recognize(module, None, None).model.config.max_positions == T
    assert module.kept.grad_fn is not None
