"""Connections: uvicorn's, with bounds on heads and on the time that callers take."""
