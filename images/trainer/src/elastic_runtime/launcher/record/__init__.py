"""What has happened in a run: its status, its metrics, its log."""
