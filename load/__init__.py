"""Tools that load a server: bench/ and rerank/ measure it beside others, stress/ hurts it."""
