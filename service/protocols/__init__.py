"""Protocols: thin edges that turn bodies into a Query and an Answer into bytes."""
