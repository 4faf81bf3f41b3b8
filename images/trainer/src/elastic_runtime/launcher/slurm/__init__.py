"""The launcher as a job of Slurm, with jobs as workers."""
