"""What can go wrong, each with the exit status that a caller can tell it by."""

from __future__ import annotations


class ClusterError(Exception):
    """Something failed; the text says what and what to do. Base of all others."""

    exit_status = 1


class NoWay(ClusterError):
    """This machine offers no way to a cluster: tests that need one are left out, which has to be said."""

    exit_status = 3


class CannotDo(ClusterError):
    """The cluster there is cannot do this, such as taking a node down that is not ours."""

    exit_status = 4
