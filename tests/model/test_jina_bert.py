"""JinaBERT, which transformers does not have: beside its BERT, with a bias in the place of the mask
and with gated feed-forwards."""

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import BertForSequenceClassification, PreTrainedModel

from addnorm.model.checkpoints import CheckpointError, load_checkpoint
from addnorm.model.layout import LAYOUTS
from tests.support.families import ENCODER, VOCAB_SIZE, made

LENGTHS = (1, 2, 17, 130, 200)
SIZES = {"max_position_embeddings": 201}


class Gated(nn.Module):
    """What stands in the place of BERT's first layer of the feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        width, d_ff = ENCODER["hidden_size"], ENCODER["intermediate_size"]
        self.dense = nn.Linear(width, 2 * d_ff, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.dense(x).chunk(2, -1)
        return nn.functional.gelu(first) * second


def jina_bert(num_heads: int) -> BertForSequenceClassification:
    torch.manual_seed(0)
    model = made("BertForSequenceClassification", num_attention_heads=num_heads, **SIZES)
    assert isinstance(model, BertForSequenceClassification)
    for layer in model.bert.encoder.layer:
        layer.intermediate = Gated()
    nn.init.zeros_(model.bert.embeddings.position_embeddings.weight)
    return model.eval()


def save(model: PreTrainedModel, folder: Path, **fields: str) -> Path:
    weights = {}
    for key, tensor in model.state_dict().items():
        if "position" not in key:
            name = key.replace("intermediate.dense", "mlp.gated_layers")
            if "attention" not in key:
                name = name.replace("output.dense", "mlp.wo")
                name = name.replace("output.LayerNorm", "mlp.layernorm")
            weights[name] = tensor.clone()
    folder.mkdir(exist_ok=True)
    save_file(weights, folder / "model.safetensors")
    own = {"position_embedding_type": "alibi", "feed_forward_type": "geglu"}
    names = {"model_type": "bert", "architectures": ["JinaBertForSequenceClassification"]}
    config = {**model.config.to_dict(), **names, **own, **fields}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def slopes(num_heads: int) -> list[float]:
    """JinaBERT's, written as its authors do."""
    if math.log2(num_heads).is_integer():
        start = 2 ** (-(2 ** -(math.log2(num_heads) - 3)))
        return [start ** (i + 1) for i in range(num_heads)]
    lower = 2 ** math.floor(math.log2(num_heads))
    return slopes(lower) + slopes(2 * lower)[0::2][: num_heads - lower]


@pytest.mark.parametrize("num_heads", [2, 3, 4, 12])
def test_rows_and_logits_in_ragged_grids_equal_those_of_the_definition(
    num_heads: int, tmp_path: Path
) -> None:
    original = jina_bert(num_heads)
    loaded = load_checkpoint(save(original, tmp_path))
    ours = loaded.model
    assert loaded.model_type == "jina_bert"
    draws = torch.Generator().manual_seed(1)
    ids = torch.randint(5, VOCAB_SIZE, (len(LENGTHS), 203), generator=draws)
    mask = torch.stack([(torch.arange(203) >= 203 - length).long() for length in LENGTHS])
    for layout in LAYOUTS.values():
        ours.layout = layout
        with torch.no_grad():
            rows = ours(ids, mask)[0]
            logits = ours.head("logits", rows, mask)
            for index, real in enumerate(mask == 1):
                alone_ids = ids[index, real][None]
                places = torch.arange(alone_ids.shape[1])
                distances = (places - places[:, None]).abs()
                bias = -torch.tensor(slopes(num_heads))[None, :, None, None] * distances
                out = original(input_ids=alone_ids, attention_mask=bias, output_hidden_states=True)
                hidden = out.hidden_states[-1][0]
                gaps = (rows[index, real] - hidden).abs().amax(-1) / hidden.abs().amax(-1)
                assert gaps.max() <= 1e-5
                torch.testing.assert_close(logits[index], out.logits[0], atol=1e-5, rtol=1e-5)


def test_other_feed_forwards_are_refused_by_name(tmp_path: Path) -> None:
    folder = save(jina_bert(2), tmp_path, feed_forward_type="original")
    with pytest.raises(CheckpointError, match="feed_forward_type is 'original', supported is 'geg"):
        load_checkpoint(folder)
