"""One request from its check to its outputs."""
