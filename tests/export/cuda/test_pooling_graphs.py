"""The graphs that pool and drop pads on a GPU, as they lie in service/engine/cuda/pooling."""

import pytest

from addnorm.export.certificate.graph import structure
from addnorm.export.cuda.pooling_graphs import export_graph
from addnorm.export.graphs.model_file import load
from addnorm.service.engine.cuda.gpu_engine import pooling_graph
from addnorm.service.engine.manifest import RowKind


@pytest.mark.parametrize("kind", ["max", "weighted_mean", "halves"])  # each takes a second
def test_the_graphs_are_what_the_exporter_writes(kind: RowKind) -> None:
    assert not list(structure.differences(load(pooling_graph(kind)), export_graph(kind)))
