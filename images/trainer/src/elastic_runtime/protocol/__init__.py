"""Messages between launcher, agents and ranks, and the checks on what agents and ranks send."""
