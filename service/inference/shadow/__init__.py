"""What a newer version would have answered: computed while nothing else waits, and compared."""
