"""haproxy before two servers: who gets the requests, and what a loss and haproxy itself cost."""
