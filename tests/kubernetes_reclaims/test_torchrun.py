"""A script that is written for torchrun, in pods."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.kubernetes_reclaims.conftest import Start
from tests.kubernetes_reclaims.pod_run import TIMING, Place
from tests.plain_torchrun import SPEC, sized_noticed_and_lost, through_sizes_a_notice_and_a_loss

pytestmark = pytest.mark.timeout(600)


@pytest.mark.shows(engine="torchrun", fault=("resize", "notice", "rank"), place="kubernetes")
def test_it_goes_through_sizes_a_notice_and_a_loss(start: Start, place: Place) -> None:
    folder = place.folder / "plain-torchrun"
    folder.mkdir()
    folder.chmod(0o777)  # ranks are another user
    plain = sized_noticed_and_lost(folder)
    # All ranks write their checkpoint and end, and the others begin anew, before the pod that is deleted may end.
    run = start(plain.script, (1, 2, 3), timing=replace(TIMING, leave_grace=SPEC["restart"].grace), **SPEC)
    through_sizes_a_notice_and_a_loss(run, plain, run.delete_worker, run.finish)
