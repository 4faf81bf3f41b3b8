"""How the runtime is fuzzed."""

from __future__ import annotations

import os

from tests import examples

examples.choose()
# Before torch is imported: its threads would wait for each other busily, with tensors as small as the tests'.
os.environ["OMP_NUM_THREADS"] = "1"
