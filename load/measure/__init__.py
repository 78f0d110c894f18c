"""Streams of requests, runs of them, right answers, and rounds in which all sides take turns."""
