"""Modules that people write: recognized by what they compute, not by names."""
