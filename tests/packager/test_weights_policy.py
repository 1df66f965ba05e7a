"""Rules decide how weights of layers are stored, the first that fits; one that can't hold is refused with the facts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from bundles import ASSETS, SMALL, build_bundle
from oracle import bundle_tensors, quantized_sources, source_tensors
from qpack_packager.cli import main
from qpack_packager.weights_policy import KEPT
from qpack_schemas.bundle import Bundle, open_bundle
from qpack_schemas.errors import UsageError

TINY = ASSETS / "tiny-qwen3_5"
RULES = (
    ("model.layers.1.*", "int4"),
    ("*.in_proj_*.weight", "int8"),
    ("*.down_proj.weight", "bf16"),
    ("*.self_attn.*", "int8"),
)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return open_bundle(build_bundle(TINY, tmp_path_factory.mktemp("mixed") / "bundle", replace(SMALL, rules=RULES)))


def forms(bundle: Bundle) -> dict[str, str]:
    """Checkpoint tensor of a linear -> the form of its codes."""
    return {
        source.partition("#")[0]: tensor["form"]
        for name, tensor in bundle.manifest["tensors"].items()
        if name.startswith("layers.") and len(tensor["logical_shape"]) == 2 and not name.endswith(".scale")
        for source in tensor["sources"]
    }


def test_the_first_rule_that_fits_decides(mixed: Bundle):
    found = forms(mixed)
    assert found["model.layers.1.linear_attn.in_proj_qkv.weight"] == "marlin_codes"  # by the first, not the second
    assert found["model.layers.1.mlp.down_proj.weight"] == "marlin_codes"
    assert found["model.layers.0.linear_attn.in_proj_qkv.weight"] == "int8_codes"
    assert found["model.layers.0.linear_attn.in_proj_z.weight"] == "int8_codes"
    assert found["model.layers.3.self_attn.q_proj.weight"] == "int8_codes"
    assert found["model.layers.0.mlp.down_proj.weight"] == "dense"
    assert found["model.layers.0.mlp.up_proj.weight"] == "marlin_codes"  # no rule
    assert found["model.layers.0.linear_attn.in_proj_a.weight"] == "dense"


def test_weights_are_what_their_form_says(mixed: Bundle):
    source, stored = source_tensors(TINY), bundle_tensors(mixed)
    down = stored["layers.0.mlp.down.weight"].astype(np.float32)
    assert np.array_equal(down, source["model.layers.0.mlp.down_proj.weight"])
    errors: dict[str, float] = {}
    for name in ("model.layers.0.linear_attn.in_proj_qkv.weight", "model.layers.1.linear_attn.in_proj_qkv.weight"):
        lines, wanted = quantized_sources(mixed)[name], source[name]
        errors[name] = float(np.linalg.norm(lines - wanted) / np.linalg.norm(wanted))
    int8, int4 = errors.values()
    assert 0 < int8 < 0.01 < 0.05 < int4


def test_the_manifest_says_what_was_asked_for_and_accounts_for_it(mixed: Bundle):
    quant: dict[str, Any] = {**mixed.manifest["quant"]}
    stored = {"int4": "int4", "int8": "int8", "bf16": "dense"}
    assert quant["rules"] == [{"glob": glob, "form": stored[form]} for glob, form in RULES]
    by_rule = [rule for rule in quant["kept"] if rule["reason"] == "asked for by a rule"]
    assert by_rule == [{"glob": "*.down_proj.weight", "reason": "asked for by a rule", "tensors": 3}]
    assert quant["tensors"]["source"] == len(source_tensors(TINY))


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        ((("*.q_proj.weight", "int8"),), "q_proj.weight int8, .*k_proj.weight int4, .*v_proj.weight int4"),
        ((("*.up_proj.weigth", "int8"),), r"the rule \*\.up_proj\.weigth=int8 matches no weight"),
        ((("*", "int8"), ("*.mlp.*", "bf16")), r"the rule \*\.mlp\.\*=bf16 matches no weight of a layer before"),
        ((("lm_head.weight", "int4"),), "matches no weight of a layer"),
    ],
)
def test_a_rule_that_cannot_hold_is_refused(rules: tuple[tuple[str, str], ...], says: str, tmp_path: Path):
    with pytest.raises(UsageError, match=says):
        build_bundle(TINY, tmp_path / "bundle", replace(SMALL, rules=rules))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("glob", sorted({glob for glob, _ in KEPT if "proj" in glob or "norm" in glob}))
def test_what_the_policy_keeps_is_no_weight_that_rules_change(glob: str, tmp_path: Path):
    with pytest.raises(UsageError, match="matches no weight of a layer"):
        build_bundle(TINY, tmp_path / "bundle", replace(SMALL, rules=((glob, "int8"),)))


def test_flags_and_recipes_say_the_same(tmp_path: Path):
    recipe = tmp_path / "recipe.yaml"
    lines = "".join(f"  '{glob}': {form}\n" for glob, form in RULES)
    recipe.write_text(f"modules:\n{lines}", encoding="utf-8")
    flags = [part for glob, form in RULES for part in ("--module", f"{glob}={form}")]
    plans = [
        CliRunner().invoke(main, ["plan", str(TINY), "--format", "json", *arguments])
        for arguments in (["--recipe", str(recipe)], flags, [])
    ]
    assert [plan.exit_code for plan in plans] == [0, 0, 0]
    assert plans[0].output == plans[1].output != plans[2].output


@pytest.mark.parametrize("given", ["*.mlp.*", "*.mlp.*=int3", "=int8", ""])
def test_a_flag_that_is_no_rule_is_a_usage_error(given: str):
    result = CliRunner().invoke(main, ["plan", str(TINY), "--module", given])
    assert result.exit_code == 2
    assert "GLOB=FORM" in result.output
