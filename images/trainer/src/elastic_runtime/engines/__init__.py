"""Engines that make ranks a world, one package each. :mod:`.base` is their interface to the launcher."""
