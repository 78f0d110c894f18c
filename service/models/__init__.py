"""What is served: loading and unloading, readiness, usage."""
