"""Record of a run: its status, its metrics, its log."""
