"""Modules that people wrote, recognized by what they compute: a forward as operators, told apart,
tried, and read."""
