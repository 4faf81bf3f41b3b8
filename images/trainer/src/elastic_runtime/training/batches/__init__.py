"""The same samples at every global step, whatever the size of the world."""
