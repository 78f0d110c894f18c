"""Seeded requests: greedy ones, and the worst within the limits."""
