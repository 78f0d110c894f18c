"""`addnorm load --html`: sweeps padding and load of a server, and writes a page with plots."""
