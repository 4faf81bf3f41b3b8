"""What runs cost, and the prices behind it."""
