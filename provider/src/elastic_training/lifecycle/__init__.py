"""Runs across the tries of their task: go on, start over, find, remember, remove."""
