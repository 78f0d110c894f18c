"""Bundles are proved and warm before they are served, and their folder is followed."""
