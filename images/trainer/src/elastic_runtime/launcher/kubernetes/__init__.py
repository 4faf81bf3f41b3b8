"""The launcher in a pod: its platform is a namespace. Names and keys: :mod:`elastic_runtime.run.runobjects`."""
