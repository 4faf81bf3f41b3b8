"""``cluster="my_connection"``: runs in pods, whose meeting place is :mod:`elastic_runtime.runobjects`.

Only :mod:`~elastic_training.clusters.kubernetes.connection` and :mod:`~elastic_training.clusters.kubernetes.api` import
a Kubernetes client, and only when they first need one: nothing of this package is imported when a DAG file is parsed.
"""
