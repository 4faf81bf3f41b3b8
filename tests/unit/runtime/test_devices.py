"""Accelerators of any vendor: a share for each slot of a worker, and for each worker of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic_runtime.agent.devices import WorkerShares, lacking, local_environment, pools, slot_environment


def nvidia(root: Path, count: int) -> None:
    for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{index}" for index in range(count))):
        touch(root / "dev" / name)


def amd(root: Path, count: int, unreachable: int = 0) -> None:
    """A processor, GPUs, and such as another container has."""
    minors = [0, *(128 + index for index in range(count + unreachable))]
    for node, minor in enumerate(minors):
        touch(root / f"sys/class/kfd/kfd/topology/nodes/{node}/properties", f"simd_count 1\ndrm_render_minor {minor}\n")
    for minor in minors[1 : 1 + count]:
        touch(root / f"dev/dri/renderD{minor}")


def intel(root: Path, count: int) -> None:
    for minor in range(128, 128 + count):
        touch(root / f"dev/dri/renderD{minor}")
        touch(root / f"sys/class/drm/renderD{minor}/device/vendor", "0x8086\n")


def touch(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


class TestPools:
    @pytest.mark.parametrize(
        ("vendor", "variable"),
        [(nvidia, "CUDA_VISIBLE_DEVICES"), (amd, "HIP_VISIBLE_DEVICES"), (intel, "ZE_AFFINITY_MASK")],
    )
    def test_are_one_index_per_device_of_that_vendor_alone(self, tmp_path: Path, vendor, variable: str) -> None:  # type: ignore[no-untyped-def]
        vendor(tmp_path, 3)
        assert pools({}, tmp_path) == {variable: ["0", "1", "2"]}

    def test_leave_out_what_another_container_has(self, tmp_path: Path) -> None:
        amd(tmp_path, 2, unreachable=6)
        assert pools({}, tmp_path) == {"HIP_VISIBLE_DEVICES": ["0", "1"]}

    def test_are_what_the_environment_leaves(self, tmp_path: Path) -> None:
        nvidia(tmp_path, 8)
        assert pools({"CUDA_VISIBLE_DEVICES": "2,GPU-x"}, tmp_path) == {"CUDA_VISIBLE_DEVICES": ["2", "GPU-x"]}
        assert pools({"CUDA_VISIBLE_DEVICES": "MIG-1, 3"}, tmp_path) == {"CUDA_VISIBLE_DEVICES": ["MIG-1", "3"]}
        for none in ("", "-1", "-1,0", "NoDevFiles", "none,1"):
            assert pools({"CUDA_VISIBLE_DEVICES": none}, tmp_path) == {}
        assert pools({"CUDA_VISIBLE_DEVICES": "1,-1,2"}, tmp_path) == {"CUDA_VISIBLE_DEVICES": ["1"]}
        assert pools({"ZE_AFFINITY_MASK": "0.1,1"}, tmp_path)["ZE_AFFINITY_MASK"] == ["0.1", "1"]

    def test_are_divided_by_the_variable_that_is_set(self, tmp_path: Path) -> None:
        """HIP's numbers would be relative to what ROCr leaves."""
        amd(tmp_path, 8)
        assert pools({"ROCR_VISIBLE_DEVICES": "4,5"}, tmp_path) == {"ROCR_VISIBLE_DEVICES": ["4", "5"]}

    def test_of_several_vendors_stand_side_by_side(self, tmp_path: Path) -> None:
        nvidia(tmp_path, 2)
        intel(tmp_path, 1)
        assert pools({}, tmp_path) == {"CUDA_VISIBLE_DEVICES": ["0", "1"], "ZE_AFFINITY_MASK": ["0"]}

    def test_of_a_machine_without_accelerators_are_none(self, tmp_path: Path) -> None:
        assert pools({}, tmp_path) == {}


def test_slots_without_a_device_of_their_own_are_told_of() -> None:
    assert lacking(3, {"CUDA_VISIBLE_DEVICES": ["0", "1"], "ZE_AFFINITY_MASK": ["0", "1", "2"]}) == (
        "2 in CUDA_VISIBLE_DEVICES"
    )
    assert lacking(2, {"CUDA_VISIBLE_DEVICES": ["0", "1"]}) == lacking(2, {}) == ""


@pytest.mark.parametrize("variable", ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"])
@pytest.mark.parametrize(
    ("slot", "slots", "devices", "visible"),
    [
        (0, 1, [], None),
        (0, 1, ["0", "1"], "0,1"),
        (0, 2, ["0", "1"], "0"),
        (1, 2, ["0", "1"], "1"),
        (1, 2, ["GPU-a", "GPU-b", "GPU-c", "GPU-d"], "GPU-c,GPU-d"),
        (1, 2, ["0", "1", "2"], "1"),
        (0, 3, ["0", "1"], None),
    ],
)
def test_each_slot_has_devices_of_its_own(
    variable: str, slot: int, slots: int, devices: list[str], visible: str | None
) -> None:
    assert slot_environment(slot, slots, {variable: devices}).get(variable) == visible


@pytest.mark.parametrize(
    ("given", "slot", "slots", "devices", "wanted"),
    [
        (("1", "2"), 1, 2, ["0", "1"], {"CUDA_VISIBLE_DEVICES": "0,1"}),
        (("0", "1"), 1, 2, ["0", "1"], {"CUDA_VISIBLE_DEVICES": "0,1"}),
        (("1", "2"), 0, 1, ["1"], {"CUDA_VISIBLE_DEVICES": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}),
        (("3", "4"), 1, 2, ["2", "3"], {"CUDA_VISIBLE_DEVICES": "2,3", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}),
        (("1", "2"), 1, 2, ["0"], {}),
        (("1", "2"), 1, 2, [], {}),
        (None, 1, 2, ["0", "1"], {}),
    ],
)
def test_a_local_rank_is_the_index_of_a_device_that_its_rank_sees(
    given: tuple[str, str] | None, slot: int, slots: int, devices: list[str], wanted: dict[str, str]
) -> None:
    environment = dict(zip(("LOCAL_RANK", "LOCAL_WORLD_SIZE"), given, strict=True)) if given else {}
    assert local_environment(environment, slot, slots, {"CUDA_VISIBLE_DEVICES": devices}) == wanted


class TestWorkers:
    @pytest.mark.parametrize(
        ("count", "workers", "slots", "shares"),
        [
            (4, 4, 1, ["0", "1", "2", "3"]),
            (8, 2, 1, ["0,1,2,3", "4,5,6,7"]),
            (4, 1, 2, ["0,1,2,3"]),
            (4, 8, 2, ["0,1", "2,3"]),
            (5, 2, 1, ["0,1", "2,3"]),
            (1, 3, 2, ["0"]),
        ],
    )
    def test_have_equal_shares_of_a_device_a_slot_at_least(
        self, count: int, workers: int, slots: int, shares: list[str]
    ) -> None:
        made = WorkerShares({"HIP_VISIBLE_DEVICES": [str(index) for index in range(count)]}, workers, slots)
        assert [made.environment(index)["HIP_VISIBLE_DEVICES"] for index in range(len(shares))] == shares
        assert not any(made.are_shared(index) for index in range(len(shares)))

    def test_share_in_turn_where_there_are_more_of_them(self) -> None:
        made = WorkerShares({"CUDA_VISIBLE_DEVICES": ["0", "1"]}, workers=5, slots=1)
        assert [made.environment(index)["CUDA_VISIBLE_DEVICES"] for index in range(5)] == ["0", "1", "0", "1", "0"]
        assert [made.are_shared(index) for index in range(5)] == [False, False, True, True, True]

    def test_without_devices_have_nothing_to_share(self) -> None:
        made = WorkerShares({}, workers=2, slots=1)
        assert (made.environment(1), made.are_shared(1)) == ({}, False)
