"""What a rank keeps: copied at each commit, put back after a loss, and the same on every rank after a sync."""
