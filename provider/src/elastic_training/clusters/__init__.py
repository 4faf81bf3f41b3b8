"""Where runs live: :class:`~.cluster.Cluster`, over a :class:`~.place.Place` for each kind of cluster."""
