"""The machine: its processor, its memory, and which provider runs the nodes of a graph."""
