"""Shared steps of all protocols between bytes and requests."""
