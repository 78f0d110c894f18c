"""A file for each kind of trouble, with its goals."""
