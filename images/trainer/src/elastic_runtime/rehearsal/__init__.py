"""Replays markets of spot machines through the launcher's real decision, on virtual time: what a task would meet."""
