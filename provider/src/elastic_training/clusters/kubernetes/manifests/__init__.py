"""The objects of a run as plain dicts: pure, from settings to manifests."""
