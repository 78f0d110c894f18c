"""What API keys share beside the queue: rounds of the event loop, threads, and bytes."""
