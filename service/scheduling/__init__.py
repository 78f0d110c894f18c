"""Who is computed next, who is rejected, deadlines, and byte budgets."""
