"""`addnorm load`: sends streams of requests, and checks the answers."""
