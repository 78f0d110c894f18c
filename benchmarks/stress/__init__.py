"""Guarantees that hold whatever callers send: overload, swaps, stalls, fairness, memory."""
