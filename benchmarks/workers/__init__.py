"""A launcher with many workers whose agents and ranks are played: see ``many_workers.py``."""
