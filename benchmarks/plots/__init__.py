"""The page on which results are plotted."""
