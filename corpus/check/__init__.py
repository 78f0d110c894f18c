"""`addnorm check` and `addnorm pin`: stored vectors and bits beside those that are served now."""
