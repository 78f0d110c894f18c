"""What the JSON files of a folder say and cannot be served, or contradicts its weights: refused
before memory is taken, in one line that names file, field, value and what is supported."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from addnorm.model.checkpoints import CheckpointError, load_checkpoint
from tests.support.families import made, save
from tests.support.sentence_transformers import tell
from tests.support.texts import checkpoint

GONE = ...  # the value of a field that is left out
HUGE = 9 * 10**8
CONFIG, SETTINGS = "config.json", "sentence_bert_config.json"
PROGRAM, TOKENIZER = "config_sentence_transformers.json", "tokenizer_config.json"
TEXTS = "texts"  # the folder of tests/support/texts.py; any other name is a class of transformers
BERT, LABELS = "BertModel", "BertForSequenceClassification"
MODERN, NOMIC, GTE, JINA, QWEN, QWEN2, LLAMA, EURO = (
    f"{family}Model"
    for family in (
        *("ModernBert", "NomicBert", "Gte", "JinaEmbeddingsV3", "Qwen3", "Qwen2", "Llama"),
        "EuroBert",
    )
)
BEFORE = {"layer_types": GONE, "rope_parameters": GONE}  # transformers 5
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}
BANDS = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LATER = {"rope_parameters": {"sliding_attention": YARN}}
OF_LAYERS = {"modality_config": {"text": {"method_output_name": ["hidden_states", 1]}}}
UNTIED = {"tie_word_embeddings": False}
# folder, file -> what it is told, and the words that its one line has: " ... " is anything, "$" the
# end of the line
ROWS: dict[tuple[str, str], list[tuple[dict[str, Any], str]]] = {
    (BERT, CONFIG): [
        ({"model_type": "gemma3_text"},
         "'gemma3_text' is not supported:  ... The nearest that is: 'qwen3'. text-embed"),
        ({"model_type": "made-up"}, "model_type is 'made-up'; supported are albert, bert, "),
        ({"model_type": GONE}, "model_type is missing"),
        ({"model_type": ["bert"]}, "model_type is ['bert']: a text is needed"),
        ({"hidden_act": "mish"}, "hidden_act is 'mish'"),
        ({"hidden_act": ["gelu"]}, "hidden_act is ['gelu'], supported are gelu"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        ({"hidden_size": GONE}, "hidden_size is missing"),
        ({"is_causal": True}, "is_causal is true, and this family's tokens"),
        ({"hidden_size": 9 * 10**6}, "is [99, 36], [99, 9000000] expected"),
        ({"hidden_size": HUGE}, "its sizes are too large: vocab_size 99, d_model 900000000, "),
        ({"hidden_size": 4 * HUGE}, "d_model is 3600000000, the limit is 2147483647; there d_m"),
        ({"intermediate_size": HUGE}, "dense.weight is [50, 36], [900000000, 36] expected"),
        ({"vocab_size": HUGE}, "is [99, 36], [900000000, 36] expected"),
        ({"vocab_size": int("9" * 400)}, "vocab_size is 99999"),
        ({"max_position_embeddings": 2**20}, "is [40, 36], [1048576, 36] expected"),
        ({"num_hidden_layers": 10**7}, "num_hidden_layers is 10000000, the limit is 512"),
        ({"num_hidden_layers": 500}, "missing: encoder.layer.10.attention.output.LayerNorm.bias"),
        ({"type_vocab_size": HUGE}, "token_type_embeddings.weight is [3, 36]"),
    ],
    (LABELS, CONFIG): [
        ({"problem_type": 7}, "problem_type is 7, known are regression, single_label"),
        ({"architectures": [3]}, "architectures is [3]: a list of names is needed"),
        *(({"id2label": named}, "id2label is  ... : a name for each log") for named in (
            {"a": "x"}, ["x"], {"0": "a", "2": "b", "3": "c", "4": "d", "5": "e"},
            {"0": "a", "1": "b", "2": None, "3": "d", "4": "e"}, "none",
        )),
    ],
    ("BertForMaskedLM", CONFIG): [(UNTIED, "missing: cls.predictions.decoder.weight$")],
    ("GPT2LMHeadModel", CONFIG): [(UNTIED, "missing: lm_head.weight$")],
    ("ModernBertForMaskedLM", CONFIG): [(UNTIED, "missing: decoder.weight$")],
    ("DebertaV2Model", CONFIG): [
        ({"conv_kernel_size": 3}, "conv_kernel_size is 3, supported is None or 0"),
        ({"relative_attention": False}, "relative_attention is False, supported is True"),
        ({"pos_att_type": "p2p"}, "pos_att_type names p2p, supported are c2p and p2c"),
        ({"pos_att_type": None}, "c2p and p2c are False: distances would have no effect"),
        ({"embedding_size": 20}, "embedding_size is 20, supported is 36"),
        ({"model_type": "deberta"}, "'deberta' is not supported:  ...  nearest that is: 'deberta-"),
    ],
    (MODERN, CONFIG): [
        (LATER, "parameters.sliding_attention is 'yarn', supported is 'default'"),
        ({"rope_scaling": {"type": "linear"}}, "rope_type in rope_scaling is 'linear', s"),
        ({"rope_parameters": {"rope_theta": 1e4}}, "rope_parameters has 'rope_theta', s"),
        ({"rope_parameters": []}, "rope_parameters is []: an object is needed$"),
        ({"rope_scaling": "linear"}, "rope_scaling is 'linear': an object is needed$"),
        ({"max_position_embeddings": 10**9},
         "max_positions is 1000000000, the limit is 1048576; there max_positions is max_pos"),
        ({**BEFORE, "global_rope_theta": "160k"}, "theta is '160k': a number over 0"),
        ({"layer_types": ["full_attention"] * 2}, "each of num_hidden_layers 3"),
        ({"layer_types": [*["full_attention"] * 2, "linear"]}, "'linear']: 'full_attention"),
        ({**BEFORE, "global_attn_every_n_layers": 0}, "attn_every_n_layers is 0: a whole"),
        ({"local_attention": 1}, "local_attention is 1: a whole number of 2 or more"),
        ({"local_attention": "16"}, "local_attention is '16': a whole number of 2 or more"),
        ({"classifier_bias": 1}, "classifier_bias is 1, supported is True or False"),
        ({"norm_eps": 0}, "eps is 0: a number over 0; there eps is norm_eps$"),
        ({"vocab_size": 0}, "vocab_size is 0: a whole number of 1 or more$"),
        ({"classifier_pooling": "max"}, "classifier_pooling is 'max', supported is 'cls'"),
        ({"classifier_activation": "mish"}, "classifier_activation is 'mish', supported"),
    ],
    (NOMIC, CONFIG): [
        ({"rope_parameters": []}, "rope_parameters is []: an object is needed$"),
        ({"rope_parameters": YARN}, "rope_parameters is 'yarn', supported is 'default' or"),
        ({"rotary_emb_fraction": 0.5}, "rotary_emb_fraction is 0.5, supported is 1.0"),
        ({"num_experts": 8}, "num_experts is 8, supported is None or 0 or 1"),
        ({"head_dim": 16}, "head_dim is 16, supported is 12"),
    ],
    (GTE, CONFIG): [
        ({"rope_scaling": {"type": "ntk", "mixed_b": 0.6}}, "mixed_b is 0.6, supported is None"),
        ({"pack_qkv": False}, "pack_qkv is False, supported is True"),
        ({"type_vocab_size": 0}, "unexpected:  ... token_type_embeddings"),
    ],
    (JINA, CONFIG): [
        ({"rope_parameters": {"rope_type": "ntk"}}, "is 'ntk', supported is 'default' or"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5, supported is 1.0"),
    ],
    (QWEN, CONFIG): [
        ({"rope_parameters": YARN}, "rope_parameters is 'yarn', supported is 'default' or"),
        ({"use_sliding_window": True}, "use_sliding_window is True, supported is False"),
        ({"layer_types": ["sliding_attention"] * 3}, "layer_types has ['sliding_attention'],"),
        ({"num_key_value_heads": 4}, "n_kv_heads is num_key_value_heads$"),
    ],
    ("Qwen3ForTokenClassification", CONFIG): [
        ({"token_classification_bias": False}, "unexpected:  ... score.bias"),
    ],
    (QWEN2, CONFIG): [
        ({"use_sliding_window": True}, "use_sliding_window is True, supported is False"),
        ({"layer_types": ["sliding_attention"] * 3}, "layer_types has ['sliding_attention'],"),
        ({"rope_scaling": BANDS}, "rope_parameters is 'llama3', supported is 'default' or"),
        ({"head_dim": 8}, "q_proj.weight is [36, 36], [48, 36] expected"),
    ],
    (LLAMA, CONFIG): [
        ({"rope_parameters": YARN}, "rope_parameters is 'yarn', supported is 'default' or"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "has no low_freq_factor, which"),
        ({"rope_scaling": {**BANDS, "high_freq_factor": 1.0}}, "low is 1.0 and high is 1.0"),
        ({"mlp_bias": True}, "missing: layers.0.mlp.down_proj.bias"),
        ({"attention_bias": "yes"}, "attention_bias is 'yes', supported is True or False"),
    ],
    (EURO, CONFIG): [({"mlp_bias": 1}, "mlp_bias is 1, supported is True or False")],
    ("EuroBertForSequenceClassification", CONFIG): [
        ({"classifier_pooling": "late"}, "classifier_pooling is 'late', supported is 'bos' or 'm"),
    ],
    (TEXTS, CONFIG): [
        ({"quantization_config": {"bits": 4}}, "quantization_config is"),
        ({"per_layer_config": {"1": {}}}, "per_layer_config is"),
        ({"transformers_weights": "a.bin"}, "name that file model"),
        ({"configuration_files": ["config.4.json"]}, "configuration_f"),
    ],
    (TEXTS, TOKENIZER): [
        ({"fast_tokenizer_files": ["tokenizer.4.json"]}, "fast_tokenizer_files is"),
    ],
    (TEXTS, SETTINGS): [
        ({"tokenizer_name_or_path": "a/b"}, "tokenizer_name_or_path is"),
        ({"model_args": {"variant": "fp16"}}, "model_kwargs has variant"),
        ({"config_args": [1]}, "config_args is [1]: an object is needed"),
        (OF_LAYERS, "method_output_name ['hidden_states', 1] for text"),
        ({"modality_config": ["text"]}, "modality_config is ['text']"),
    ],
    (TEXTS, PROGRAM): [
        ({"truncate_dim": 8}, "ask for `dimensions` in requests"),
        ({"max_active_dims": 8}, "max_active_dims is 8"),
        ({"query_prefix": "[Q] "}, "query_prefix is '[Q] ', which is not"),
    ],
    (TEXTS, "adapter_config.json"): [({"r": 4}, "merge_and_unload(), and export the folder")],
}  # fmt: skip
CASES = [(*of, *row) for of, rows in ROWS.items() for row in rows]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Name -> its folder, which is written once."""
    root = tmp_path_factory.mktemp("saved")

    def saved(name: str) -> Path:
        if not (folder := root / name).exists():
            checkpoint(folder) if name == TEXTS else save(made(name), folder)
        return folder

    return saved


@pytest.mark.parametrize(
    ("name", "file", "told", "words"), CASES, ids=[f"{of[0]}: {str(of[2])[:40]}" for of in CASES]
)
def test_a_field_is_refused_in_one_line(
    saved: Callable[[str], Path],
    tmp_path: Path,
    name: str,
    file: str,
    told: dict[str, Any],
    words: str,
) -> None:
    folder = tell(shutil.copytree(saved(name), tmp_path / "own"), file, **told)
    with pytest.raises(CheckpointError) as refused:
        load_checkpoint(folder)
    message = str(refused.value)
    pattern = ".*".join(re.escape(part.strip()) for part in words.removesuffix("$").split(" ... "))
    assert re.search(pattern + "$" * words.endswith("$"), message), message
    assert "\n" not in message
    assert len(message) < 2000 + len(str(folder))
    assert file in message or "weights do not fit" in message
