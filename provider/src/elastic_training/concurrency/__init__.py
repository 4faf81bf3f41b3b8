"""Between threads and event loops."""
