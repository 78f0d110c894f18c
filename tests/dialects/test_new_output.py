"""An output that only this file knows has its place in JSON, in tensors, in half the width, in the
documentation, in the estimate of an answer's bytes and in the certificate."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import httpx
import numpy as np
import pytest
from pydantic import Field
from safetensors.numpy import load

from addnorm.export.certificate.served import bits, path_of
from addnorm.service.dialects import native
from addnorm.service.dialects.kserve import tensors
from addnorm.service.dialects.native.native_infer import Bodies
from addnorm.service.dialects.operations import PROTOCOL as OPERATIONS
from addnorm.service.engine.batch import Batch, Padding
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.outputs import OUTPUTS, OutputKinds
from addnorm.service.engine.outputs.output import (
    Output,
    OutputInputs,
    OutputParameters,
    Size,
    Strict,
)
from addnorm.service.engine.outputs.values import ByRow, Ragged
from addnorm.service.engine.registry import Models
from addnorm.service.server.wiring import build
from addnorm.service.settings import Settings
from addnorm.service.wire.codec.safetensors_body import SAFETENSORS
from tests.conftest import OWN, client_of

LIMIT = 4096  # bytes of an answer


class LengthOptions(Strict):
    scale: float = Field(1.0, description="What the lengths are multiplied by.")


@dataclass(frozen=True, eq=False)
class RowLengths(Output[ByRow]):
    name = "row_lengths"
    json_type = list[list[list[float]]]
    description = "[B][S][1], the Euclidean length of each token's activations."
    options = LengthOptions
    is_default = False
    scale: float = 1.0
    num_lookups: ClassVar[int] = 0  # how often what it takes was asked

    @classmethod
    def is_of(cls, bundle: Bundle) -> bool:
        return True

    @classmethod
    def asked_for(cls, asked: OutputParameters) -> "RowLengths":
        return cls(asked.options.scale) if asked.options else cls()

    def width(self, bundle: Bundle) -> int:
        return 1

    def size(self, bundle: Bundle, batch: Batch, padding: Padding) -> Size:
        RowLengths.num_lookups += 1
        return super().size(bundle, batch, padding)

    def make(self, of: OutputInputs) -> ByRow:
        lengths = np.linalg.norm(of.rows.activations, axis=1, keepdims=True)
        return self.laid_out(lengths * np.float32(self.scale), of)


class DependsOnBatch(RowLengths):
    """On what else is in it: no certificate may pass it."""

    def make(self, of: OutputInputs) -> ByRow:
        array = super().make(of)
        return Ragged([row / np.float32(of.batch.num_tokens) for row in array.rows])


KNOWN = OutputKinds((*OUTPUTS.known, RowLengths))
IDS, MASK = [[1, 3, 4, 0], [0, 5, 0, 2]], [[1, 1, 1, 0], [0, 1, 0, 1]]
GRID = {"model": "notebook", "input_ids": IDS, "attention_mask": MASK}


@pytest.fixture(scope="module")
def client(few: Models) -> Iterator[httpx.Client]:
    settings = Settings(**{**OWN, "max_response_bytes": LIMIT})
    service = build(
        few, settings, protocols=(native.protocol(Bodies.for_outputs(KNOWN)), OPERATIONS)
    )
    with client_of(service) as client:
        yield client


def ask(client: httpx.Client, as_tensors: bool = False, **asked: Any) -> httpx.Response:
    headers = {"accept": SAFETENSORS} if as_tensors else {}
    return client.post("/v1/infer", json={**GRID, **asked}, headers=headers)


def test_it_is_sent_as_json_in_the_callers_layout_with_its_options(client: httpx.Client) -> None:
    answer = ask(client, outputs=["activations", "row_lengths"], row_lengths={"scale": 2}).json()
    lengths = np.linalg.norm(np.array(answer["activations"]), axis=-1, keepdims=True)
    np.testing.assert_allclose(answer["row_lengths"], 2 * lengths, rtol=1e-6)
    assert not np.array(answer["row_lengths"])[np.array(MASK) == 0].any()


@pytest.mark.parametrize("layout", ["grid", "ragged"])
def test_it_is_sent_as_a_tensor_with_the_bits_of_the_json(
    client: httpx.Client, layout: str
) -> None:
    ragged = {"input_ids": [[1, 3, 4], [5, 2]], "attention_mask": None}
    fields = {"outputs": ["row_lengths"], **(ragged if layout == "ragged" else {})}
    rows = ask(client, **fields).json()["row_lengths"]
    tensors = load(ask(client, as_tensors=True, **fields).content)
    expected = np.concatenate(rows) if layout == "ragged" else np.array(rows)
    assert tensors["row_lengths"].dtype == np.float32
    assert tensors["row_lengths"].tolist() == expected.astype(np.float32).tolist()
    assert ("lengths" in tensors) == (layout == "ragged")


def test_half_its_width_holds_it_or_it_is_rejected(client: httpx.Client) -> None:
    half = {"outputs": ["row_lengths"], "dtype": "float16", "as_tensors": True}
    row_lengths = load(ask(client, **half).content)["row_lengths"]
    whole = np.array(ask(client, outputs=["row_lengths"]).json()["row_lengths"], np.float32)
    assert row_lengths.dtype == np.float16
    assert row_lengths.tolist() == whole.astype(np.float16).tolist()
    refused = ask(client, **half, row_lengths={"scale": 1e6})
    assert refused.status_code == 400
    assert "row_lengths has the value" in refused.text


def test_it_is_documented_with_its_options(client: httpx.Client) -> None:
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    assert schemas["InferResponse"]["properties"]["row_lengths"]["description"] == (
        RowLengths.description
    )
    properties = schemas["InferRequest"]["properties"]
    assert "row_lengths" in str(properties["outputs"])
    assert "LengthOptions" in str(properties["row_lengths"])
    assert schemas["LengthOptions"]["properties"]["scale"]["description"] == (
        LengthOptions.model_fields["scale"].description
    )


def test_an_answer_that_it_makes_too_large_is_rejected_before_it_is_made(
    client: httpx.Client,
) -> None:
    """13 bytes for each of the numbers, one for each token."""
    rows = [[1] * 5] * (LIMIT // 13 // 5)
    sent = {"input_ids": rows, "attention_mask": None, "outputs": ["row_lengths"]}
    assert ask(client, **sent).status_code == 200
    refused = ask(client, **{**sent, "input_ids": [*rows, [1] * 5]})
    assert refused.status_code == 400
    assert "the answer would have about" in refused.text


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"row_lengths": {"scale": 2}}, "row_lengths is set, but outputs lacks 'row_lengths'"),
        ({"outputs": ["row_lengths"] * 2}, "outputs has 'row_lengths' twice"),
        ({"outputs": ["row_lengths"], "row_lengths": {"by": 2}}, "row_lengths.by is unknown"),
        ({"outputs": []}, "pooled, norm_stats, row_lengths"),
    ],
)
def test_what_does_not_fit_is_named(
    client: httpx.Client, asked: dict[str, Any], message: str
) -> None:
    refused = ask(client, **asked)
    assert refused.status_code == 400
    assert message in refused.json()["error"]["message"]


def test_it_is_made_only_where_it_is_named(client: httpx.Client) -> None:
    assert "row_lengths" not in ask(client).json()


def test_what_it_takes_is_looked_up_once_a_request(client: httpx.Client) -> None:
    RowLengths.num_lookups = 0
    assert ask(client, outputs=["row_lengths"]).status_code == 200
    assert RowLengths.num_lookups == 1


def test_v2_has_a_tensor_of_its_name_and_shape(few: Models) -> None:
    assert tensors.outputs(few.find("notebook").bundle, KNOWN)["row_lengths"].shape == [-1, -1, 1]


@pytest.mark.parametrize(("kind", "is_equal"), [(RowLengths, True), (DependsOnBatch, False)])
def test_a_certificate_compares_its_bits(
    few: Models, kind: type[RowLengths], is_equal: bool
) -> None:
    bodies = Bodies.for_outputs(OutputKinds((*OUTPUTS.known, kind)))
    with path_of(few.find("notebook"), bodies) as path:
        ((_, pairs),) = dict(bits(path))["co-batched like alone"]("fp32").items()
        equal = [
            all(row.tobytes() == same.tobytes() for row, same in zip(*pair, strict=True))
            for pair in pairs
        ]
    assert equal
    assert all(equal) == is_equal
