"""Rerank beside Infinity and CrossEncoder."""
