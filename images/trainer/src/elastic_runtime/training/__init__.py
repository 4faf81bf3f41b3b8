"""Common internals of the helpers in a rank, for any framework. Not for scripts."""
