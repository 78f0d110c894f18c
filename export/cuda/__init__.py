"""Code for GPUs alone: the certificate's section "cuda", and the graphs that pool there. A reader
may skip it: docs/cuda.md."""
