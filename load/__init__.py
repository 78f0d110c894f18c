"""`addnorm load`: measure/ sends requests and checks the answers, sweep/ makes a page of them."""
