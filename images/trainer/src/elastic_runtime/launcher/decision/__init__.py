"""What the launcher knows at one moment, since when, and what it does about it. Pure."""
