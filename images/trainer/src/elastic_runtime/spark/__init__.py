"""Spark, for both distributions: a run's application, and the driver of it."""
