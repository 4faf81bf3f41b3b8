"""Watching of runs: one watch for all of them, and a log for each."""
