"""Slurm, for both distributions: its commands, and the jobs of a run."""
