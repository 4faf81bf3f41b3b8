"""What runs in the process of the user's script, whatever its engine and framework."""
