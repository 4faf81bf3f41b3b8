"""What makes ranks a world: one package for each engine; :mod:`.base` is what the launcher knows of them."""
