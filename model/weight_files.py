"""Names of files that hold weights. Imports nothing: who only looks for them needs no torch."""

INDEX = ".index.json"  # after the name of the file that is in shards
SAFE, PICKLED = "model.safetensors", "pytorch_model.bin"  # the first that is there is read
GLINER = "gliner_config.json"
FILES = (SAFE, SAFE + INDEX, PICKLED, PICKLED + INDEX)
# FlagEmbedding's heads of every token, beside the weights of bge-m3: the output of each
FLAG_HEADS = {"colbert_linear.pt": "token_vectors", "sparse_linear.pt": "token_weights"}
# files beside the weights that other programs read: what they are
BESIDE = {
    "model_head.pkl": "SetFit's classifier",
    "config_setfit.json": "SetFit's labels",
    GLINER: "GLiNER's settings",
    "adapter_config.json": "an adapter",
    "processor_config.json": "settings of a processor",
    "preprocessor_config.json": "settings of a processor",
    "chat_template.json": "a processor's chat template",
}
