"""What all protocols share between bytes and requests."""
