"""Experiments with Ray Serve on three raylets. Needs the extra `ray`."""
