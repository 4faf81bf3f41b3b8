"""Ray as the system of launcher and workers."""
