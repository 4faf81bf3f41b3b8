"""How a run is doing, from its objects: the launcher's word, and Kubernetes' own where it cannot speak."""
