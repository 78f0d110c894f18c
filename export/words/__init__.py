"""Token ids of texts, as the authors of a folder make them."""
