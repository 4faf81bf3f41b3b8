"""The documents of a run: what is to be run, how it is doing, and where both are kept."""
