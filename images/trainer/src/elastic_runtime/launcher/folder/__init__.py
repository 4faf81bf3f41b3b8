"""The launcher's platform of runs whose documents are in a folder."""
