"""Unmodified client packages with only a URL, a key and a model set: a table of calls for each
environment, which are compared with the server's plain routes."""
