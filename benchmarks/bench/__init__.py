"""`make bench`: Addnorm beside other servers, and beside what limits it."""
