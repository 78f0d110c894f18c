"""Protocols: thin edges that turn bodies into an InferenceRequest and an InferenceResponse into bytes."""
