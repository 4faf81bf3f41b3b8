"""Checkpoints in a bucket of S3, or of any server that speaks its protocol and knows conditional writes.

==========================  ================================================================================
key, under the prefix       what
==========================  ================================================================================
``.register``               the highest fencing token seen and the names that are published; every change of it
                            is conditional on the version read (``If-Match``), so it is the one point at which
                            writers meet
``NAME/PART``               a part, uploaded in pieces
``NAME/manifest.json``      written when all parts are there, and only if there is none (``If-None-Match: *``)
``.draft-NAME``             a marker, beside a checkpoint that is being written or deleted; touched as long as its
                            writer lives, so leftovers are recognised
==========================  ================================================================================

A checkpoint appears when its name enters the register. The same conditional write compares the fences: a writer that
was replaced, however late it wakes up, can publish nothing.
"""

from elastic_runtime.checkpoint.s3.store import S3Store

__all__ = ["S3Store"]
