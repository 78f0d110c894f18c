"""Tools that load servers: bench/, rerank/ and cache/ measure speed, spread/ puts haproxy before
several, stress/ hurts one."""
