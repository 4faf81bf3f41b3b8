"""The launcher in a pod: its platform are a namespace. Names and keys: :mod:`elastic_runtime.run.runobjects`.

Only :mod:`.api` knows a Kubernetes client; everything else asks :class:`~.interface.Api`, in plain JSON objects.
"""
