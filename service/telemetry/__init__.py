"""Request context, log, metrics, traces, and the invariance check."""
