"""Durable checkpoints: stall, hand-over, upload. The program is ``benchmarks/checkpoints.py``."""
