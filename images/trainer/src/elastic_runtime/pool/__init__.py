"""A standing pool of warm workers, which runs use one after the other and at once."""
