"""Seeded requests: everyday, greedy, mixed, broken, and the worst within the limits."""
