"""A run's document in the annotations of its root: laid down, changed conditionally, taken away."""
