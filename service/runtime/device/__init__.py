"""What a session runs on: the processor, or a GPU and the rows that stay there."""
