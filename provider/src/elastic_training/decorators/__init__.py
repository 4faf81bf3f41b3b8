"""Decorators that make a training of a Python function."""
