"""Calls over gRPC: where they arrive, and what middleware does for requests over HTTP."""
