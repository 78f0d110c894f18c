"""What routes are made of: receiving, deadlines, answering."""
