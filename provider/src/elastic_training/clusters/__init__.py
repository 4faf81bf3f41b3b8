"""Where runs live: one interface, :class:`~elastic_training.clusters.types.Cluster`, and what implements it."""
