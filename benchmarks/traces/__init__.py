"""Replays traces of spot machines through the launcher's real decision, on virtual time. See benchmarks/README.md."""
