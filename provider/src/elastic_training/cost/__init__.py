"""Costs of runs, and their prices."""
