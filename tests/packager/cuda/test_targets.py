"""`--target`, and the table of architectures."""

import re

import pytest

from qpack_packager.cuda.targets import ARCHITECTURES, COMMON, Target, forward_path, parse_targets
from qpack_schemas.errors import UnsupportedError


def test_targets_are_ascending_and_each_once():
    assert parse_targets(["cuda:sm_120", "cuda:sm_89", "cuda:sm_120"]) == (Target(89), Target(120))
    assert parse_targets([]) == ()


def test_cuda_alone_is_the_common_ones_and_may_be_joined_by_others():
    assert [target.sm for target in parse_targets(["cuda"])] == list(COMMON)
    assert [target.sm for target in parse_targets(["cuda:sm_110", "cuda"])] == [80, 86, 87, 89, 90, 110, 120]


@pytest.mark.parametrize(
    "name",
    ["cuda:sm_101", "cuda:sm_90a", "cuda:89", "cuda:ptx_120", "cuda:", "CUDA", "cpu", "cuda:sm_٨٩", "cuda:sm_89\n"],
)
def test_what_is_no_target_is_refused_and_the_known_ones_are_listed(name: str):
    with pytest.raises(UnsupportedError, match=re.escape(f"--target {name} is not supported")) as caught:
        parse_targets(["cuda:sm_89", name])
    assert caught.value.exit_code == 4
    assert caught.value.remedy == (
        "use one of cuda, cuda:sm_75, cuda:sm_80, cuda:sm_86, cuda:sm_87, cuda:sm_89, cuda:sm_90, cuda:sm_100, "
        "cuda:sm_103, cuda:sm_110, cuda:sm_120, cuda:sm_121"
    )


def test_gpus_that_the_compiler_does_not_know_are_refused_with_the_reason():
    with pytest.raises(UnsupportedError, match="Triton compiles for sm_75 and newer"):
        parse_targets(["cuda:sm_70"])


def test_names_folders_and_scopes():
    told = {(t.name, t.folder, t.architecture_name, t.scope) for t in (Target(89), Target(90), Target(120, "ptx"))}
    assert told == {
        ("cuda:sm_89", "sm_89", "sm_89", "major"),
        ("cuda:sm_90", "sm_90", "sm_90a", "exact"),
        ("cuda:ptx_120", "ptx_120", "sm_120", "newer"),
    }


@pytest.mark.parametrize(
    ("wanted", "forward"), [([80], 80), ([86, 89], 89), ([90], 89), ([89, 110], 89), ([80, 120], 120), ([121], 121)]
)
def test_the_forward_path_is_of_the_newest_architecture_whose_code_newer_ones_run(wanted: list[int], forward: int):
    assert forward_path(map(Target, wanted)) == Target(forward, "ptx")


def test_drivers_and_ptx_versions_belong_together():
    """PTX ISA, release notes: 8.0 came with CUDA 12.0, 8.6 with 12.7, 8.7 with 12.8, 8.8 with 12.9, 9.0 with 13.0."""
    released = {80: 12000, 86: 12070, 87: 12080, 88: 12090, 90: 13000}
    for architecture in ARCHITECTURES.values():
        assert released[architecture.ptx] <= architecture.min_driver
        assert architecture.min_driver // 1000 == architecture.toolkit // 10
