"""Protocols turn bodies into what is asked, and outputs into bytes."""
