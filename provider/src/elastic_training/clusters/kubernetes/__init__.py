"""``cluster="my_connection"``: runs in pods, whose meeting place is :mod:`elastic_runtime.run.runobjects`.

Requests are made by :mod:`elastic_runtime.kubernetes`; of the synchronous client's library, only
:mod:`~elastic_training.clusters.kubernetes.connection` uses the loading of configurations, and
:mod:`~elastic_training.clusters.kubernetes.manifests.template` the models that pod templates are merged with.
"""
