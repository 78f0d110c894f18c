"""What must hold whatever callers send: storms, overload, deadlines, stalls, fairness, memory."""
