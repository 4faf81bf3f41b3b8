"""The launcher's platform where workers are of a standing pool: the run's folder, and a pool's keeper."""
