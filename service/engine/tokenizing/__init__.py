"""A bundle's tokenizer, and whose ids a caller sends."""
