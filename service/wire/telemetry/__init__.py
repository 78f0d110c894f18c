"""Report, log, metrics, traces, and the invariance check."""
