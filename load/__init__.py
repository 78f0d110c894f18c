"""Tools that load a server: bench/, rerank/ and cache/ measure speed, stress/ hurts it."""
