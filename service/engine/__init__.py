"""Outputs, heads and what is kept of rows. Knows models and tokens, no requests."""
