"""What to run once on a machine with a GPU. It has not run on one yet, and a reader may skip it."""
