"""Parts of ``tools/cluster``: a real Kubernetes for tests, the demo and benchmarks. Standard library only."""
