"""Ray, for both distributions: its API of jobs, and the jobs of a run."""
