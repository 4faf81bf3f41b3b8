"""How the attacks on the runtime are run."""

from __future__ import annotations

import os

from tests import examples

examples.choose()
# Before torch is imported: its threads would wait for each other busily, with tensors as small as the tests'.
os.environ["OMP_NUM_THREADS"] = "1"

# After hypothesis' settings are chosen and torch's threads counted.
from tests.unit.checkpoints.conftest import (  # noqa: E402
    az,  # noqa: F401
    azure_url,  # noqa: F401
    checkpoints,  # noqa: F401
    cloud,  # noqa: F401
    gcs_url,  # noqa: F401
    gs,  # noqa: F401
    no_pauses,  # noqa: F401
    pauses,  # noqa: F401
    place,  # noqa: F401
    proxy,  # noqa: F401
    s3,  # noqa: F401
    s3_store,  # noqa: F401
    s3_url,  # noqa: F401
)
