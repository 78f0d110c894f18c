"""Experiments for a machine with a GPU. A reader may skip it."""
