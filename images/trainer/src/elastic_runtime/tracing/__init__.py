"""Timelines and profiles of a run, merged and kept beside its checkpoints."""
