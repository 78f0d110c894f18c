"""What Ray Serve does with Addnorm, on three raylets. Needs the extra `ray`."""
