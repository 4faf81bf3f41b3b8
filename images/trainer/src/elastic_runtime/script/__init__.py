"""Code in the process of the user's script, for any engine and framework."""
