"""Comparison of graphs with the reference, exactly: weights, attributes and nodes. Runs none."""
