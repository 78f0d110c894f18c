"""The process, HTTP connections, the ASGI application, API keys, and the wiring of all objects."""
