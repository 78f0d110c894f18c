"""The graphs that pool on a GPU, as they lie in service/engine/cuda/pooling."""

import pytest

from addnorm.export.certificate.graph import structure
from addnorm.export.cuda.pooling_graphs import export_pooling
from addnorm.export.graphs.model_file import load
from addnorm.service.engine.cuda.gpu_engine import pooling_graph
from addnorm.service.engine.manifest import Pooling


@pytest.mark.parametrize("pooling", ["max", "weighted_mean"])  # each export takes a second
def test_the_graphs_are_what_the_exporter_writes(pooling: Pooling) -> None:
    assert not list(structure.differences(load(pooling_graph(pooling)), export_pooling(pooling)))
