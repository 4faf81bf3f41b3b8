"""What happens to runs, as it happens: one watch for all of them, and each one's log."""
