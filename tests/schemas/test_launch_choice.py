"""Which target of a bundle a host runs: NVIDIA's rules of binary compatibility, as tables written by hand."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpack_schemas.errors import FitError, UnsupportedError
from qpack_schemas.manifest import Target, compiled_targets
from qpack_schemas.targets import choose, fitting_buckets, runs_on

NEW = 99990  # a driver that is new enough for everything


def target(name: str, scope: str = "", **changes: Any) -> dict[str, Any]:
    kind, number = name.removeprefix("cuda:").split("_")
    form = "ptx" if kind == "ptx" else "cubin"
    scope = scope or ("newer" if form == "ptx" else "major")
    return {
        "architecture": f"sm_{number}{'a' * (scope == 'exact')}", "scope": scope, "format": form, "toolkit": 129,
        "min_driver": 12000, "max_shared_bytes": 0, "work_bytes": {"decode-b1-c64": 100, "prefill-t16-c64": 1000},
        "minimum_device_bytes": 5000, "compilers": {}, "kernels": {}, **changes,
    }  # fmt: skip


def bundle(*names: str, exact: tuple[str, ...] = (), **changes: Any) -> dict[str, Any]:
    """`cpu`, and targets by their short names: sm_89, ptx_120."""
    made = {f"cuda:{name}": target(name, "exact" if name in exact else "", **changes) for name in names}
    return {"cpu": {}, **made}


# The GPUs that run a cubin for sm_N. Desktop: A100 80, RTX 30 86, RTX 40 89, H100 90, B200 100, B300 103, RTX 50 120,
# GB10 121. Tegra: Xavier 72, Orin 87, Thor 110 (101 before CUDA 13).
GPUS = (70, 72, 75, 80, 86, 87, 89, 90, 100, 101, 103, 110, 120, 121)
PORTABLE = {
    70: {70, 75}, 72: {72}, 75: {75}, 80: {80, 86, 89}, 86: {86, 89}, 87: {87}, 89: {89}, 90: {90}, 100: {100, 103},
    101: {101}, 103: {103}, 110: {110}, 120: {120, 121}, 121: {121},
}  # fmt: skip


@pytest.mark.parametrize("own", PORTABLE)
def test_a_cubin_runs_within_its_major_version_and_tegra_stays_alone(own: int):
    cubin: Any = target(f"sm_{own}")
    assert {sm for sm in GPUS if runs_on(cubin, sm)} == PORTABLE[own]


@pytest.mark.parametrize("own", PORTABLE)
def test_code_for_one_architecture_runs_there_only(own: int):
    cubin: Any = target(f"sm_{own}", "exact")
    assert {sm for sm in GPUS if runs_on(cubin, sm)} == {own}


@pytest.mark.parametrize("own", PORTABLE)
def test_ptx_runs_on_its_own_and_on_every_newer_gpu(own: int):
    ptx: Any = target(f"ptx_{own}")
    assert {sm for sm in GPUS if runs_on(ptx, sm)} == {sm for sm in GPUS if sm >= own}


COMMON = bundle("sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_120", "ptx_120", exact=("sm_90", "sm_120"))


@pytest.mark.parametrize(
    ("targets", "sm", "allow_ptx", "chosen"),
    [
        (COMMON, 80, False, "sm_80"),
        (COMMON, 86, False, "sm_86"),
        (COMMON, 87, False, "sm_87"),
        (COMMON, 88, False, "sm_86"),
        (COMMON, 89, False, "sm_89"),
        (COMMON, 90, False, "sm_90"),
        (COMMON, 120, False, "sm_120"),
        (COMMON, 120, True, "sm_120"),
        (COMMON, 121, True, "ptx_120"),
        (COMMON, 130, True, "ptx_120"),
        (bundle("sm_80"), 86, False, "sm_80"),
        (bundle("sm_80", "sm_86"), 89, False, "sm_86"),
        (bundle("ptx_80", "sm_80"), 86, True, "sm_80"),
        (bundle("ptx_80", "ptx_90"), 120, True, "ptx_90"),
        (bundle("ptx_80", "ptx_90"), 89, True, "ptx_80"),
        (bundle("ptx_80"), 87, True, "ptx_80"),
    ],
)
def test_the_nearest_code_is_chosen(targets: Mapping[str, Any], sm: int, allow_ptx: bool, chosen: str):
    assert choose(targets, sm, NEW, None, allow_ptx) == f"cuda:{chosen}"


@pytest.mark.parametrize(
    ("targets", "sm", "allow_ptx"),
    [
        (COMMON, 75, True),  # older than everything
        (COMMON, 100, False),
        (COMMON, 121, False),  # sm_120a is for 120 only
        (bundle("sm_86"), 80, True),  # the minor number is too low
        (bundle("sm_86"), 87, True),  # Tegra
        (bundle("sm_87"), 89, True),
        (bundle("sm_89"), 90, True),  # another major number
        (bundle("ptx_120"), 100, True),
        (bundle(), 89, True),
    ],
)
def test_what_runs_nowhere_is_refused_with_what_there_is(targets: Mapping[str, Any], sm: int, allow_ptx: bool):
    with pytest.raises(UnsupportedError) as caught:
        choose(targets, sm, NEW, None, allow_ptx)
    text = str(caught.value)
    assert caught.value.exit_code == 4
    assert f"this GPU is sm_{sm}" in text
    assert f"--target cuda:sm_{sm}" in text
    assert all(name in text for name in targets if name != "cpu")


def test_the_refusal_as_it_is_printed():
    with pytest.raises(UnsupportedError) as caught:
        choose(bundle("sm_80", "sm_87", "sm_90", "ptx_80", exact=("sm_90",)), 121, 13000, None)
    assert str(caught.value).splitlines() == [
        "no target of the bundle runs here: this GPU is sm_121, its driver supports CUDA 13.0",
        "  target       runs on                   needs CUDA  here",
        "  cuda:ptx_80  sm_80 and newer           12.0        not allowed: compiled by the driver at boot",
        "  cuda:sm_80   sm_80 to sm_89, no Tegra  12.0        another architecture",
        "  cuda:sm_87   sm_87 only                12.0        another architecture",
        "  cuda:sm_90   sm_90 only                12.0        another architecture",
        "  remedy: build the bundle with --target cuda:sm_121, or allow the driver to compile its PTX with --allow-ptx",
    ]


@pytest.mark.parametrize(
    ("needs", "has", "cuda", "linux"),
    [
        (12000, 11080, "12.0", "; on Linux 525 or newer"),
        (12040, 12030, "12.4", "; on Linux 570 or newer"),  # 550 would do; no bundle of ours needs just that
        (12080, 12040, "12.8", "; on Linux 570 or newer"),
        (13000, 12090, "13.0", "; on Linux 580 or newer"),
        (13040, 13000, "13.4", ""),
    ],
)
def test_an_older_driver_is_refused_naming_the_one_that_is_needed(needs: int, has: int, cuda: str, linux: str):
    """Linux drivers: release notes of CUDA."""
    targets = bundle("sm_89", min_driver=needs)
    assert choose(targets, 89, needs, None) == "cuda:sm_89"
    with pytest.raises(UnsupportedError) as caught:
        choose(targets, 89, has, None)
    assert "the driver is too old" in str(caught.value)
    assert caught.value.remedy == f"update the driver to one for CUDA {cuda} or newer{linux}"


def test_an_older_cubin_serves_where_the_driver_is_too_old_for_the_nearest():
    targets = {**bundle("sm_80"), "cuda:sm_89": target("sm_89", min_driver=13000)}
    assert choose(targets, 89, 12040, None) == "cuda:sm_80"
    assert choose(targets, 89, 13000, None) == "cuda:sm_89"


def test_what_does_not_fit_is_refused_with_the_buckets_that_would():
    """Weights, state and io take 4,000 bytes of the 5,000 here; the largest work bucket 1,000."""
    targets = bundle("sm_89", work_bytes={"decode-b1-c64": 100, "decode-b4-c64": 400, "prefill-t1-c64": 100,
                                          "prefill-t16-c64": 1000})  # fmt: skip
    assert choose(targets, 89, NEW, 5000) == "cuda:sm_89"
    with pytest.raises(FitError) as caught:
        choose(targets, 89, NEW, 4999)
    assert caught.value.exit_code == 6
    assert str(caught.value).splitlines()[:2] == [
        "cuda:sm_89 needs 5,000 bytes of device memory, this GPU (sm_89) has 4,999",
        "  would fit: decode-b1-c64, prefill-t1-c64, decode-b4-c64",
    ]
    with pytest.raises(FitError, match="weights, state and io alone take 4,000") as caught:
        choose(targets, 89, NEW, 4099)
    assert "would fit" not in str(caught.value)


@given(
    work=st.dictionaries(st.text("ab", min_size=1), st.integers(0, 1000), min_size=1),
    others=st.integers(0, 1000),
    memory=st.integers(0, 3000),
)
def test_the_buckets_that_would_fit_are_all_that_do(work: dict[str, int], others: int, memory: int):
    """Kept alone or together they fit, and none that is left out does."""
    planned: Any = target("sm_89", work_bytes=work, minimum_device_bytes=others + max(work.values()))
    kept = fitting_buckets(planned, memory)
    assert all(others + work[name] <= memory for name in kept)
    assert all(others + work[name] > memory for name in work.keys() - set(kept))


def test_targets_of_newer_versions_are_left_alone():
    """A newer minor version may know other kinds; they are not ours to run."""
    targets = {**bundle("sm_89"), "rocm:gfx942": {"any": "thing"}, "x-note": 1, "cuda:sm_89f": {}}
    known: Mapping[str, Target] = compiled_targets(targets)
    assert list(known) == ["cuda:sm_89"]
    assert choose(targets, 89, NEW, None) == "cuda:sm_89"
