"""What a run's status costs: its launcher, and the training."""
