"""Follows a run until it ends, and forwards its log."""
