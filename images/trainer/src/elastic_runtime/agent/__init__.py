"""One per worker: dials the launcher, starts and stops ranks, forwards what they write, hears reclaim notices."""
