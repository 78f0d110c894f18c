"""The APIs that are spoken: a file or a folder each. A decode fills the ask, and says how it is
answered."""
