"""Sources: what a bundle is made of (a preset, a folder, a model in memory), with its texts."""
