"""A forward as PyTorch's operators: followed, told apart, tried, and read."""
