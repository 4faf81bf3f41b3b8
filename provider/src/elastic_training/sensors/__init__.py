"""Sensors: change a training and wait until it has followed."""
