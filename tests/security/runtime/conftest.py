"""How the attacks on the runtime are run."""

from __future__ import annotations

import os

from tests import examples

examples.choose()
# Before torch is imported: its threads would wait for each other busily, with tensors as small as the tests'.
os.environ["OMP_NUM_THREADS"] = "1"

# After hypothesis' settings are chosen and torch's threads counted.
from tests.unit.checkpoints.conftest import checkpoints, pauses, place, proxy, s3, s3_store, s3_url  # noqa: E402, F401
