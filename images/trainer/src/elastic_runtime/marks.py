"""Metadata by which fields of documents are written, or read, in another way."""

from __future__ import annotations

SPARSE = {"left out": True}
"""Of a field that documents are written without where it has its default. For what there are many of."""
VERSION = {"version": True}
"""Of a field whose default is the one version that is read: a document that says another is refused."""
