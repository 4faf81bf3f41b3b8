"""Checkpoints in a bucket of objects, of any server whose writes can be conditional on the version that is there.

==========================  ================================================================================
key, under the prefix       what
==========================  ================================================================================
``.register``               the highest fencing token seen and the names that are published; every change of it
                            is conditional on the version read, so it is the one point at which writers meet
``NAME/PART``               a part, uploaded in pieces
``NAME/manifest.json``      written when all parts are there, and only if there is none
``.draft-NAME``             a marker, beside a checkpoint that is being written or deleted; touched as long as its
                            writer lives, so leftovers are recognised
==========================  ================================================================================

A checkpoint appears when its name enters the register. The same conditional write compares the fences: a writer that
was replaced, however late it wakes up, can publish nothing.

What differs between clouds is behind :class:`~elastic_runtime.checkpoint.objects.bucket.Bucket`.
"""
