"""What to run on a machine with a GPU. A reader may skip it."""
