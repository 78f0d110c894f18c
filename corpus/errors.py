"""The error that ends a command on a file of texts and vectors."""


class CorpusError(Exception):
    """A file, a server or an option does not fit. The message is one line: what is wrong, and the
    choices."""
