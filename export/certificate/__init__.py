"""Certificate of a bundle: what must be equal to the reference, and what must be close to it.

`certificate.certify` makes it. Knows no source of models and writes no file.
"""
