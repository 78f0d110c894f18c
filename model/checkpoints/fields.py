"""Fields of the authors' files, a list for each file: those that are read, and those that change no
answer. Fields of config.json that a family reads stand in its own table, in `families/`.

A field that stands in no list is reported as not read. One that is known to change answers, in a
way that is not supported, is refused.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from addnorm.model.checkpoints.reader import CheckpointError


@dataclass(frozen=True)
class Fields:
    """read, no_effect: names, or patterns of such. refused: names -> what to do; null and empty
    values are as none."""

    read: tuple[str, ...] = ()
    no_effect: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)

    def refuse(self, file: Path | str, settings: Mapping[str, Any]) -> None:
        """CheckpointError for a field that changes answers, and is not supported."""
        for name, way_on in self.refused.items():
            if (value := settings.get(name)) not in (None, False, "", [], {}):
                raise CheckpointError(
                    f"{file}: {name} is {value!r:.200}, which is not supported: {way_on}"
                )

    def list_unread(self, names: Iterable[str]) -> list[str]:
        """The fields that stand in no list."""
        patterns = (*self.read, *self.refused, *self.no_effect)
        return [
            name for name in names if not any(fnmatchcase(name, pattern) for pattern in patterns)
        ]


SAVE_AGAIN = "load the model with it, and save that with save_pretrained to another folder"
# GenerationConfig's, which releases before 5 kept there too
GENERATION = (
    "max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups",
    "diversity_penalty", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty",
    "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids",
    "num_return_sequences", "output_scores", "return_dict_in_generate", "forced_bos_token_id",
    "forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty",
    "suppress_tokens", "begin_suppress_tokens",
)  # fmt: skip
CONFIG = Fields(  # config.json, of every family
    read=(
        "model_type", "architectures", "auto_map", "problem_type", "id2label", "label2id",
        "num_labels", "tie_word_embeddings", "is_causal", "pad_token_id", "tokenizer_class",
        "sentence_transformers", "sbert_ce_default_activation_function",
    ),
    no_effect=(
        *GENERATION,
        # everything is computed in float32, whatever these say
        "dtype", "torch_dtype",
        # for training alone
        "*dropout*", "*_pdrop", "layerdrop", "initializer_*", "init_std", "gradient_checkpointing",
        # the form of an output, and how it is computed
        "output_hidden_states", "output_attentions", "return_dict", "tie_last_hidden_states",
        "attn_implementation", "_attn_implementation", "chunk_size_feed_forward", "use_cache",
        "use_flash_attn*", "torchscript", "use_bfloat16", "experts_implementation",
        "distributed_config",
        # of heads that are refused, or of programs that are not transformers' classes
        "summary_*", "finetuning_task", "task_specific_params", "prefix", "function_to_apply",
        "fusion_config",
        # read by no class of transformers 5
        "_name_or_path", "transformers_version", "bos_token_id", "eos_token_id", "sep_token_id",
        "cls_token_id", "mask_token_id", "decoder_start_token_id", "tie_encoder_decoder",
        "cross_attention_hidden_size", "directionality", "pooler_fc_size", "pooler_num*",
        "pooler_size*", "pooler_type", "output_past", "is_encoder_decoder", "is_decoder",
        "add_cross_attention", "position_embedding_type", "pruned_heads", "_num_labels",
        "gradient_checkpointing", "model_name", "classifier_dropout",
    ),
    refused={
        "quantization_config": "export the model that was quantized, in float32 or 16 bits; for"
        " int8, write @int8 behind the name",
        "per_layer_config": SAVE_AGAIN,
        "transformers_weights": "name that file model.safetensors, and remove the field",
        "configuration_files": "name the file that is meant config.json, and leave the field out",
    },
)  # fmt: skip
SETTINGS = Fields(  # sentence_bert_config.json and its likes, of sentence-transformers' Transformer
    read=(
        "max_seq_length", "do_lower_case", "module_output_name", "transformer_task",
        "modality_config", "processor_kwargs", "tokenizer_args", "processing_kwargs",
        "model_kwargs", "model_args", "config_kwargs", "config_args", "query_length",
        "document_length", "query_expansion",
    ),
    no_effect=("unpad_inputs", "backend"),
    refused={
        "tokenizer_name_or_path": "put the files of that tokenizer into the folder, and remove the"
        " field",
    },
)  # fmt: skip
# what sentence-transformers calls transformers' class with
MODEL_ARGUMENTS = Fields(
    no_effect=(
        "dtype", "torch_dtype", "attn_implementation", "add_pooling_layer", "device_map",
        "low_cpu_mem_usage", "use_safetensors", "use_cache", "unpad_inputs", "cache_dir", "token",
        "local_files_only",
    ),
)  # fmt: skip
PYLATE = (
    "query_prefix", "document_prefix", "do_query_expansion", "attend_to_expansion_tokens",
    "skiplist_words",
)  # fmt: skip
PYLATES = (
    "load the folder with sentence_transformers.MultiVectorEncoder, and export the folder of its"
    " save_pretrained"
)
PROGRAM = Fields(  # config_sentence_transformers.json
    read=(
        "model_type", "prompts", "default_prompt_name", "similarity_fn_name", "activation_fn",
    ),
    no_effect=("__version__", "keep_in_fp32_modules", "requirements"),
    refused={
        "truncate_dim": "remove the field, and ask for `dimensions` in requests, or in an alias"
        " such as ADDNORM_ALIASES=short=NAME?dimensions=256",
        "max_active_dims": "remove the field to serve every entry",
        **dict.fromkeys(PYLATE, PYLATES),
    },
)  # fmt: skip
MODULES = {  # config.json of a module
    "Pooling": Fields(
        read=("pooling_mode", "pooling_mode_*", "include_prompt"),
        no_effect=("embedding_dimension", "word_embedding_dimension", "pooling_mode_*"),
    ),
    "Dense": Fields(
        read=(
            "activation_function", "bias", "module_input_name", "module_output_name",
            "use_residual",
        ),
        no_effect=("in_features", "out_features"),  # as the weights are
    ),
    "LayerNorm": Fields(no_effect=("dimension",)),  # as the weights are
    "Normalize": Fields(read=("module_input_name", "module_output_name")),
    "Dropout": Fields(no_effect=("dropout",)),
    "SpladePooling": Fields(
        read=("pooling_strategy", "activation_function"),
        no_effect=("embedding_dimension", "word_embedding_dimension", "chunk_size"),
    ),
    "MultiVectorMask": Fields(read=("skiplist_words", "skiplist_tasks", "keep_only_token_ids")),
    "HierarchicalTokenPooling": Fields(
        read=("pool_factor", "num_protected_tokens", "normalize_embeddings", "tasks"),
    ),
    "LogitScore": Fields(read=("true_token_id", "false_token_id", "module_input_name")),
}  # fmt: skip
TOKENIZER = Fields(  # tokenizer_config.json, which transformers' class reads whole
    no_effect=("*",),
    refused={
        "fast_tokenizer_files": "name the file that is meant tokenizer.json, and remove the field"
    },
)
