"""Four published comparisons of fault tolerance, done again on this machine, with raw data and a page of each."""
