"""Requests for another size of a training: when they are due, their progress, and the state of the training's task."""
