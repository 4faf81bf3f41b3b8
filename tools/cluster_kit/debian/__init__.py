"""A Kubernetes of real parts on one Debian machine, as root: for where there is no Docker engine.

etcd, API server, controller-manager, scheduler, kube-proxy, and for each node a kubelet with a containerd and a network
of its own. All from Debian's packages; Debian 12 has Kubernetes 1.20 as source only, so it is compiled once.
"""
