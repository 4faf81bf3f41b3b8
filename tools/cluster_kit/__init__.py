"""Parts of ``scripts/cluster``: a real Kubernetes for tests, the demo and benchmarks. Standard library only."""
