"""Models and tokens: bundles, sessions, tokenizers, batches, outputs. Knows no requests, keys or
HTTP."""
