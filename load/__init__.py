"""`addnorm load`: measure/ sends requests and checks the answers."""
