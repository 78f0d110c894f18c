"""Who is computed next, who is rejected, deadlines, and what requests hold."""
