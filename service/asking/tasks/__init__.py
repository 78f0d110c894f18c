"""Outputs to labels, entities and words: functions of arrays."""
