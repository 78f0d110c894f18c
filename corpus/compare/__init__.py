"""`addnorm compare`: two models, precisions, servers or files of vectors, on texts."""
