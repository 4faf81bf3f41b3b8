"""One per run: collects facts, decides, acts, and writes the status. Drives the engine's session in process."""
