"""One training under the same resizes, with a batch that stays and with one that grows: the plot of docs/batches.md."""
