"""Operators: start and adopt trainings, and send drills to them."""
