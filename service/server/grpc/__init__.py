"""Calls over gRPC: where they arrive, and what the application does for requests over HTTP."""
