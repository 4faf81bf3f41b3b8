"""One training under the same resizes, with a batch that stays and one that grows: docs/batches.md's plot."""
