"""The page's API over a folder of many runs."""
