"""Checks of a training by its receipt, after it has ended or while it goes on."""
