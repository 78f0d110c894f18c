"""The same texts by several ways of computing their vectors: rates, vectors and bits compared."""
