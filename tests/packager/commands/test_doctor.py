"""`qpack doctor`: what makes a model graphable, and what is refused, in words and for machines."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bundles import ASSETS
from checkpoints import random_checkpoint
from qpack_packager.cli import main
from qpack_packager.cuda.lowering.refusals import STATIC
from qpack_schemas.instructions import INSTRUCTIONS


def doctor(model: Path, *flags: str):
    return CliRunner().invoke(main, ["doctor", str(model), *flags])


def test_every_instruction_has_a_reason_to_be_static():
    assert set(STATIC) == set(INSTRUCTIONS)


@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-qwen3_5"])
def test_a_qwen_model_is_graphable_and_every_instruction_of_it_is_listed(name: str):
    result = doctor(ASSETS / name, "--format", "json")
    assert result.exit_code == 0
    facts = json.loads(result.stdout)
    assert facts["graphable"]
    for program in facts["programs"].values():
        assert program["refused"] == []
        assert program["launches"] >= len(program["instructions"])
        assert set(program["instructions"]) <= set(facts["static"])


def test_the_text_fits_a_terminal_and_ends_with_the_verdict():
    result = doctor(ASSETS / "tiny-qwen3_5")
    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert lines[-1] == "graphable: yes"
    assert all(len(line) <= 80 and line == line.rstrip() for line in lines)


def test_what_is_refused_is_named_with_its_size_and_what_is_needed(tmp_path: Path):
    model = random_checkpoint(tmp_path / "model", "qwen3", head_dim=48)
    result = doctor(model)
    assert result.exit_code == 4
    assert "head_dim is 48, kernels need a power of two from 16 to 256" in " ".join(result.stdout.split())
    assert result.stdout.splitlines()[-1].startswith("graphable: no")
    facts = json.loads(doctor(model, "--format", "json").stdout)
    assert not facts["graphable"]
    assert {refusal["op"] for refusal in facts["programs"]["decode"]["refused"]} == {"rope_kv_write", "attention"}
