"""Names of files that hold weights. Imports nothing: who only looks for them needs no torch."""

INDEX = ".index.json"  # after the name of the file that is in shards
SAFE, PICKLED = "model.safetensors", "pytorch_model.bin"  # the first that is there is read
FILES = (SAFE, SAFE + INDEX, PICKLED, PICKLED + INDEX)
