"""`addnorm embed`: the texts of files to a file of vectors."""
