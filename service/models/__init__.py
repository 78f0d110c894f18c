"""What is served: the models with their engines, readiness, usage."""
