"""Fields that documents leave out where they have their defaults."""

from __future__ import annotations

SPARSE = {"left out": True}
"""Metadata of a field that documents are written without where it has its default. For what there are many of."""
