"""Which waiting sequences are computed next, and which of them are equal."""
