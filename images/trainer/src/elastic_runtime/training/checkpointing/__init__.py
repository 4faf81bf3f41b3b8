"""Durable checkpoints of a state: when one is due, which commit is the last, and the thread that writes."""
