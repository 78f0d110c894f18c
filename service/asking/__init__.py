"""One request: the ask, its limits, its price, its deadline; the gate, the queue, workers, the
cache, tasks. Knows no wire."""
