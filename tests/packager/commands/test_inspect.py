"""`qpack inspect` and the summary behind `build`, against the files of the bundle as other libraries read them."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

from bundles import ASSETS, SMALL, build_bundle, own_files, stored_weights
from checkpoints import read_config
from qpack_packager.commands.inspect import report, summary
from qpack_packager.commands.typeset import percent
from qpack_schemas.bundle import open_bundle
from qpack_schemas.errors import IntegrityError
from qpack_schemas.manifest import seal

NAMES = ["tiny-qwen3", "tiny-qwen3_5"]


def facts(bundle: Path) -> dict[str, Any]:
    return json.loads(report(bundle, "json"))


def quant_log(bundle: Path) -> list[dict[str, Any]]:
    lines = (bundle / "quant_log.jsonl").read_text(encoding="utf-8").splitlines()
    return [source for line in lines for source in json.loads(line)["sources"]]


def copy(bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundle, tmp_path / "bundle"))


def replace_file(bundle: Path, path: str, data: bytes | None) -> None:
    """Changes a file, or takes it away, with a manifest that agrees."""
    manifest = json.loads((bundle / "manifest.json").read_bytes())
    if data is None:
        (bundle / path).unlink()
        manifest["files"] = [entry for entry in manifest["files"] if entry["path"] != path]
    else:
        (bundle / path).write_bytes(data)
        next(entry for entry in manifest["files"] if entry["path"] == path)["bytes"] = len(data)
    (bundle / "manifest.json").write_bytes(seal(manifest))


@pytest.mark.parametrize("name", NAMES)
def test_the_summary_is_a_dozen_short_lines(name: str, tiny_bundle: Callable[[str], Path]):
    bundle = tiny_bundle(name)
    first, *lines = summary(open_bundle(bundle)).splitlines()
    assert first == str(bundle)
    assert 8 <= len(lines) <= 12
    assert all(len(line) <= 80 and line == line.rstrip() and line.isascii() for line in lines)
    assert facts(bundle)["bundle_id"] in summary(open_bundle(bundle))


@pytest.mark.parametrize("name", NAMES)
def test_the_text_fits_a_terminal_and_holds_the_summary(name: str, tiny_bundle: Callable[[str], Path]):
    bundle = tiny_bundle(name)
    text = report(bundle, "text")
    assert text.startswith(summary(open_bundle(bundle)))
    assert all(len(line) <= 80 for line in text.splitlines() if str(bundle) not in line)
    assert "bytes were not hashed" in text


@pytest.mark.parametrize("name", NAMES)
def test_totals_are_those_of_the_directory(name: str, tiny_bundle: Callable[[str], Path]):
    bundle = tiny_bundle(name)
    totals = facts(bundle)["totals"]
    sizes = [path.stat().st_size for path in own_files(bundle)]
    assert (totals["files"], totals["bytes"]) == (len(sizes), sum(sizes))
    assert facts(bundle)["manifest"] == json.loads((bundle / "manifest.json").read_bytes())


def test_the_state_is_split_as_the_config_says(tiny_bundle: Callable[[str], Path]):
    """4 slots of 128 positions, a scratch slot and its position; buffers are padded to 256 bytes."""
    config, parts = read_config(ASSETS / "tiny-qwen3_5"), facts(tiny_bundle("tiny-qwen3_5"))["totals"]["memory_parts"]

    def padded(size: int) -> int:
        return (size + 255) // 256 * 256

    values = config["linear_num_value_heads"] * config["linear_value_head_dim"]
    channels = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"] + values
    assert parts["state"] == {
        "KV cache": 2 * padded((4 * 128 + 1) * config["num_key_value_heads"] * config["head_dim"] * 2),
        "convolution": 3 * padded(5 * channels * config["linear_conv_kernel_dim"] * 2),
        "recurrent": 3 * padded(5 * values * config["linear_key_head_dim"] * 4),
        "sampling counts": padded(5 * config["vocab_size"] * 2),
        "token and position": 2 * padded(5 * 4),
    }


@pytest.mark.parametrize("name", NAMES)
def test_the_weights_are_split_by_what_the_files_hold(name: str, tiny_bundle: Callable[[str], Path]):
    bundle = tiny_bundle(name)
    sizes = {key: tensor.nbytes for key, tensor in stored_weights(bundle).items()}
    tokens = sizes["embed.q"] + sizes["embed.scale"]
    int4 = sum(size for key, size in sizes.items() if key.endswith((".q", ".scale"))) - tokens
    files = sum(file.stat().st_size for file in (bundle / "weights").iterdir())
    assert facts(bundle)["totals"]["memory_parts"]["weights"] == {
        "int4 codes and scales": int4,
        "embedding and head": tokens,
        "other dense": sum(sizes.values()) - int4 - tokens - sizes["rope"],
        "RoPE table": sizes["rope"],
        "headers and padding": files - sum(sizes.values()),
    }


def test_the_largest_tensors_come_first(tiny_bundle: Callable[[str], Path]):
    bundle = tiny_bundle("tiny-qwen3_5")
    stored = stored_weights(bundle)
    sizes = sorted((tensor.nbytes for tensor in stored.values()), reverse=True)
    section = report(bundle, "text").split("Largest of ")[1].split("\n\n")[0].splitlines()[1:]
    assert [stored[line.split()[0]].nbytes for line in section] == sizes[: len(section)]


@pytest.mark.parametrize("name", NAMES)
def test_the_worst_quantized_tensors_come_first(name: str, tiny_bundle: Callable[[str], Path]):
    bundle = tiny_bundle(name)
    errors, log = facts(bundle)["totals"]["quantization_errors"], quant_log(bundle)
    worst = [source["relative_rms_error"] for source in errors["worst_first"]]
    assert worst == sorted((source["relative_rms_error"] for source in log), reverse=True)
    assert errors["median"] == pytest.approx(median(worst))
    section = report(bundle, "text").split("Quantization error")[1].split("\n\n")[0].splitlines()[1:]
    top = max(log, key=lambda source: source["relative_rms_error"])
    assert section[0].split() == [top["tensor"], "int4", f"{100 * top['relative_rms_error']:.2f}", "%"]


def test_a_head_in_int4_and_an_embedding_in_int8_are_told_and_their_errors_kept_apart(tmp_path: Path):
    options = replace(SMALL, lm_head="int4", embedding="int8")
    bundle = build_bundle(ASSETS / "tiny-qwen3", tmp_path / "bundle", options)
    flat = " ".join(report(bundle, "text").split())
    assert "head int4; embedding int8; tied, but a tensor each" in flat
    worst = facts(bundle)["totals"]["quantization_errors"]["worst_first"]
    by_bits = {bits: [source["relative_rms_error"] for source in worst if source["bits"] == bits] for bits in (4, 8)}
    assert [len(errors) for errors in by_bits.values()] == [29, 1]
    low, high, eight = (percent(error) for error in (min(by_bits[4]), max(by_bits[4]), *by_bits[8]))
    assert f"error {low} to {high} in int4, {eight} in int8" in flat


@pytest.mark.parametrize("log", [None, b""])
def test_a_bundle_without_a_quantization_log_is_shown_without_errors(
    log: bytes | None, tiny_bundle: Callable[[str], Path], tmp_path: Path
):
    bundle = copy(tiny_bundle("tiny-qwen3"), tmp_path)
    replace_file(bundle, "quant_log.jsonl", log)
    assert facts(bundle)["totals"]["quantization_errors"] is None
    assert "Quantization error" not in report(bundle, "text")


@pytest.mark.parametrize("log", [b"{", b"[]\n", b"\xff", b'{"sources":[{"tensor":"a","part":""}]}', b'{"sources":3}'])
def test_a_log_that_is_none_is_damage(log: bytes, tiny_bundle: Callable[[str], Path], tmp_path: Path):
    bundle = copy(tiny_bundle("tiny-qwen3"), tmp_path)
    replace_file(bundle, "quant_log.jsonl", log)
    with pytest.raises(IntegrityError) as caught:
        report(bundle, "text")
    assert [finding.where for finding in caught.value.findings] == ["quant_log.jsonl"]


def test_a_damaged_bundle_is_not_shown(tiny_bundle: Callable[[str], Path], tmp_path: Path):
    bundle = copy(tiny_bundle("tiny-qwen3"), tmp_path)
    (bundle / "model" / "config.json").unlink()
    with pytest.raises(IntegrityError):
        report(bundle, "text")


def test_numbers_are_read_at_a_glance():
    from qpack_packager.commands.typeset import bar, bytes_text, percent

    shown = {0: "0 B", 999: "999 B", 1000: "1.0 kB", 999_949: "999.9 kB", 999_950: "1.0 MB", 2**31: "2.15 GB"}
    assert {size: bytes_text(size) for size in shown} == shown
    assert (percent(0), percent(1e-6), percent(1)) == ("0.0 %", "<0.1 %", "100.0 %")
    assert (bar(0, 9), bar(1, 10**9), bar(9, 9)) == ("", "#", "#" * 24)
    lengths = [len(bar(int(part), 1000)) for part in np.arange(0, 1001)]
    assert lengths == sorted(lengths)
