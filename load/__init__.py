"""Tools that load servers: bench/, rerank/ and cache/ measure speed, spread/ several behind haproxy,
stress/ hurts one."""
