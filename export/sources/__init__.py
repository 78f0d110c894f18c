"""Sources: what a bundle is made of (a preset, a folder, a model in memory), with its texts."""


class UsageError(Exception):
    """The arguments do not fit together, or with what is on disk."""
