"""Writes what documents take from the code and from measurements: `make docs`."""
