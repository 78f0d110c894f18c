"""The process, HTTP connections, middleware, API keys, and the wiring of all objects."""
