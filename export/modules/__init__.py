"""Modules that people write: which `Transformer` they are, by what they compute and not by names.

trace -> parts -> shape -> trial -> weights, see `recognize`.
"""
