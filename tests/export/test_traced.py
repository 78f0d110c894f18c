"""Weights and numbers of an authors' graph are those of the program that PyTorch followed."""

import math
import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from onnx import ModelProto, numpy_helper
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from addnorm.export.certificate.graph import traced
from addnorm.export.graphs.authors import MODULE, Exported, export_graph
from addnorm.export.graphs.model_file import Graph
from addnorm.export.graphs.steady import steady
from addnorm.export.reference.modules import open_module
from addnorm.export.wishes import Wishes
from tests.support.mutation import whole

D = 8
CUBE = 0.044715


class Formulas(nn.Module):
    """What exporters write otherwise than it stands here: gates of an LSTM in another order, a norm
    over the batch in the weights before it, what is computed of weights and numbers alone."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.norm = nn.Embedding(20, D), nn.LayerNorm(D, eps=1e-6)
        self.lstm, self.gelu = nn.LSTM(D, D, batch_first=True), nn.GELU("tanh")
        self.conv, self.batch_norm = nn.Conv1d(D, D, 3, padding=1), nn.BatchNorm1d(D)
        self.rms, self.groups = nn.RMSNorm(D, eps=2e-6), nn.GroupNorm(2, D, eps=3e-5)
        self.up, self.down = weight_norm(nn.Linear(D, D)), nn.Linear(D, D)
        for each in [*self.parameters(), self.batch_norm.running_var]:
            nn.init.uniform_(each, 0.5, 2)  # type: ignore[arg-type]

    def forward(self, ids: Tensor) -> Tensor:
        places = (torch.arange(40)[:, None] * torch.arange(D) / 40).sin()
        x = self.lstm(self.tokens(ids) + places[: ids.shape[1]])[0]
        is_token = torch.vmap(lambda place: place >= 0)(torch.arange(ids.shape[1]))  # as masks are
        x = torch.where(is_token[:, None], x, x.mean())
        x = x + self.batch_norm(self.conv(x.mT)).mT
        x = 50 * torch.tanh(self.rms(self.groups(x.mT).mT) / 50)
        y = self.up(self.norm(x))
        y = 0.5 * y * (1 + torch.tanh(math.sqrt(2 / math.pi) * (y + CUBE * y.pow(3))))
        answer: Tensor = self.gelu(self.down(x * torch.rsqrt(y.pow(2).mean(-1, True) + 1e-5)))
        return answer


Followed = tuple[Exported, dict[str, Tensor]]


@pytest.fixture(scope="module")
def followed() -> Followed:
    reference = open_module(Formulas().eval(), Wishes(max_positions=12))
    weights = {f"{MODULE}.{name}": each for name, each in reference.ask.state_dict().items()}
    return export_graph(reference), weights


def differences(followed: Followed, graph: Graph) -> dict[str, list[str]]:
    exported, weights = followed
    return {
        name: words for name, words in traced.compare(graph, exported.program, weights) if words
    }


def times(number: float, factor: float) -> Callable[[ModelProto], None]:
    """Multiplies the one constant or attribute that has this number."""

    def change(model: ModelProto) -> None:
        near = np.float32(number)
        items = [item for item in model.graph.initializer
                 if numpy_helper.to_array(item).size == 1
                 and numpy_helper.to_array(item).reshape(-1)[0] == near]  # fmt: skip
        for item in items:
            changed = numpy_helper.to_array(item) * np.float32(factor)
            item.CopyFrom(numpy_helper.from_array(changed, item.name))
        attributes = [item for node in model.graph.node for item in node.attribute
                      if item.f == near and item.name == "epsilon"]  # fmt: skip
        for attribute in attributes:
            attribute.f *= factor
        assert len(items) + len(attributes) == 1

    return change


def another_gelu(model: ModelProto) -> None:
    (gelu,) = (node for node in model.graph.node if node.op_type == "Gelu")
    gelu.attribute[0].s = b"none"


def test_an_export_has_no_other_weights_and_numbers(followed: Followed) -> None:
    assert differences(followed, steady(followed[0].graph)) == {}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (times(1e-6, 30), "9.99.*e-07 occurs 0 times, 1 expected"),
        (times(1e-5, 30), "9.99.*e-06 occurs 0 times, 1 expected"),
        (times(2e-6, 30), "1.99.*e-06 occurs 0 times, 1 expected"),
        (times(3e-5, 30), r"(2\.99|3\.0).*e-05 occurs 0 times, 1 expected"),
        (times(50, 1.001), "50.0 occurs 0 times, 2 expected"),
        (times(CUBE, 0), r"0\.0447.* occurs 0 times, 1 expected"),
        (another_gelu, "Gelu by tanh occurs 0 times, 1 expected"),
    ],
    ids=["layer", "mean square", "rms", "groups", "soft cap", "cube", "gelu"],
)
def test_numbers_that_answers_hardly_show_are_found(
    followed: Followed, change: Callable[[ModelProto], None], words: str
) -> None:
    graph = whole(steady(followed[0].graph))
    change(graph.proto)
    node_differences = differences(followed, graph)
    assert node_differences.keys() == {"numbers"}
    assert re.fullmatch(words, *node_differences["numbers"])


def test_a_millionth_of_any_weight_is_found_and_a_thousandth_of_what_is_computed(
    followed: Followed,
) -> None:
    graph, weights = steady(followed[0].graph), followed[1].values()
    turned = (each.mT.contiguous() for each in weights if each.dim() > 1)
    stored = {each.numpy().tobytes() for each in (*weights, *turned)}
    names = [name for name, array in graph.constants().items()
             if array.dtype.kind == "f" and array.size > 1]  # fmt: skip
    exact = [name for name in names if graph.constants()[name].tobytes() in stored]
    assert len(exact) >= 5
    assert len(names) - len(exact) >= 5
    for name in names:
        changed = whole(graph)
        item = next(item for item in changed.proto.graph.initializer if item.name == name)
        array = numpy_helper.to_array(item).copy()
        array.flat[np.abs(array).argmax()] *= 1 + (2.0**-20 if name in exact else 1e-3)
        item.CopyFrom(numpy_helper.from_array(array, name))
        assert name in differences(followed, changed)["weights"][0]
