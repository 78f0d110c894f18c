"""What is served: the models with their engines, their names, usage."""
