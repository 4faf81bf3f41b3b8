"""State of a rank: copied at each commit, restored after a loss, and the same on every rank after a sync."""
