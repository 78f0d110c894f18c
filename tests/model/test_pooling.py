"""Picking vectors in PyTorch agrees with the server's pooling, which shares no code with it."""

from typing import get_args

import numpy as np
import pytest
import torch

from addnorm.model.config import Config, HeadConfig
from addnorm.model.pooling import pick_vectors
from addnorm.model.transformer import Transformer
from addnorm.service.engine.batch import Batch, Rows
from addnorm.service.engine.heads import pooled
from addnorm.service.engine.manifest import Pooling

MASK = torch.tensor([[0, 1, 0, 1, 1], [1, 1, 1, 1, 1], [0, 0, 0, 1, 0], [0, 0, 0, 0, 0]])


@pytest.mark.parametrize("pooling", get_args(Pooling))
def test_picks_what_the_server_pools_wherever_the_pads_stand(pooling: Pooling) -> None:
    activations = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0))
    vectors = pick_vectors(pooling, activations, MASK)
    batch = Batch.of([np.zeros(length, np.int64) for length in (3, 5, 1)])
    real = activations[MASK != 0].numpy()
    expected = pooled(Rows(real, real, real), batch.offsets[:-1], batch.offsets[1:], pooling)
    np.testing.assert_allclose(vectors[:3].numpy(), expected, atol=1e-6)
    assert not vectors[3].any(), "a row of pads alone has no vector"


def test_a_head_runs_on_the_rows_that_its_config_names() -> None:
    heads = {"logits": HeadConfig("last", 2), "token_vectors": HeadConfig("every", 7)}
    config = Config(
        vocab_size=9, d_model=8, n_heads=2, d_ff=8, n_layers=1, max_positions=5, heads=heads
    )
    model, ids = Transformer(config), torch.arange(5)[None].expand(4, 5)
    activations = model(ids, MASK)[0]
    logits = model.head("logits", activations, MASK)
    torch.testing.assert_close(logits[2], model.heads["logits"](activations[2, 3]))
    assert model.head("token_vectors", activations, MASK).shape == (4, 5, 7)
