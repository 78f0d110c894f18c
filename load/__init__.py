"""Tools that load a server: bench/ measures it beside a naive one, stress/ tries to hurt it."""
