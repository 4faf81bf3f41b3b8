"""Parts of ``benchmarks/deferred_runs.py``: N deferred runs in one triggerer, on a real Kubernetes API server."""
