"""One request: the ask, its limits and its price, who is computed next, the cache, its answer."""
