"""The authors' program, from a folder or in memory: how it is called, and what it answers."""
