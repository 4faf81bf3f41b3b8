"""Handwritten digits: the data, the network and the counting behind the DAG ``digits_elastic``.

Runs in the trainer's environment (torch, numpy, scikit-learn); the DAG file imports nothing from here.
"""
