"""Shows what Ray Serve does with Addnorm: `make ray`. Needs the extra `ray`."""
