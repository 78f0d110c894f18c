"""What only GPUs need: the certificate's section "cuda", and the graphs that pool there. None of it
has run on a GPU yet, and a reader may skip it: docs/cuda.md."""
