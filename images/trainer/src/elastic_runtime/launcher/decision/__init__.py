"""Decisions of the launcher from its facts and their times. Pure."""
