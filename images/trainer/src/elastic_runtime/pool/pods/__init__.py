"""A pool in pods of a namespace: its keeper in one, and a host in each of the others."""
