"""Shared by all protocols: texts and ids to sequences, and tasks over texts."""
