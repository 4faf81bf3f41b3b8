"""Where runs live: one interface, :class:`~elastic_training.clusters.base.Cluster`, and what implements it."""
