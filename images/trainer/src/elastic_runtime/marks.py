"""Metadata by which fields of documents are written, or read, in another way."""

from __future__ import annotations

SPARSE = {"left out": True}
"""Mark of a field that is not written if it has its default, for values that occur often."""
VERSION = {"version": True}
"""Mark of a field whose default is the only version that is read. Documents with another one are refused."""
