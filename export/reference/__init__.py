"""The authors' program, whose own graph is exported: a folder's, or a module that people wrote."""
