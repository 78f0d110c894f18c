"""Protocols turn bodies into an InferenceRequest, and an InferenceResponse into bytes."""
