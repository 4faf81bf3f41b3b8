"""Learning rates for a batch that grows with the world."""
