"""One per run: collects facts, decides, acts, and writes the status. Drives Horovod's ElasticDriver in process."""
