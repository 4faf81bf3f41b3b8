"""Hooks: trainings from Python code of one's own, and what the form of a connection tests."""
