"""Names of files that hold weights. Imports nothing: who only looks for them needs no torch."""

INDEX = ".index.json"  # after the name of the file that is in shards
SAFE, PICKLED = "model.safetensors", "pytorch_model.bin"  # the first that is there is read
FILES = (SAFE, SAFE + INDEX, PICKLED, PICKLED + INDEX)
# files beside the weights that other programs read: what they are
BESIDE = {
    "model_head.pkl": "SetFit's classifier",
    "config_setfit.json": "SetFit's labels",
    "sparse_linear.pt": "FlagEmbedding's head of lexical weights",
    "colbert_linear.pt": "FlagEmbedding's head of vectors of tokens",
    "gliner_config.json": "GLiNER's settings",
    "adapter_config.json": "an adapter",
    "processor_config.json": "settings of a processor",
    "preprocessor_config.json": "settings of a processor",
    "chat_template.json": "a processor's chat template",
}
