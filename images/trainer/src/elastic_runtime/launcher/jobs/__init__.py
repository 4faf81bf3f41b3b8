"""The launcher as a job of a batch system, with jobs as workers."""
