"""Kubernetes for both distributions: one client, one copy kept by a watch, one reading of what it says of pods.

Needs ``elastic-runtime[kubernetes]``. Nothing else in this project imports a Kubernetes client to make requests.
"""
