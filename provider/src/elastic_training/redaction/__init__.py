"""Removes secrets from what people may see."""
