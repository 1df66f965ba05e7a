"""The gate lets through what keeps its limits in every mode, and says with both values what doesn't."""

import pytest

from qpack_packager.evaluate.figures import Figures
from qpack_packager.evaluate.gate import Gate, missed
from qpack_schemas.errors import UsageError


def measured(ppl_ratio: float = 1.01, kl_mean: float = 0.02, error: float | None = 0.001) -> Figures:
    return {
        "perplexity": 9.0, "perplexity_stderr": 0.1, "ppl_ratio": ppl_ratio, "ppl_ratio_stderr": error,
        "kl_mean": kl_mean, "kl_stderr": error, "kl_p99": 0.2, "kl_max": 1.0, "top1_agreement": 0.9,
        "kl_histogram": None, "nonfinite_tokens": 0, "nonfinite": [],
    }  # fmt: skip


@pytest.mark.parametrize("gate", [Gate(1.02, 0.03), Gate(max_ppl_ratio=1.02), Gate(max_kl=0.03), Gate(1.01, 0.02)])
def test_what_keeps_the_limits_passes(gate: Gate):
    assert gate.check({"fast": measured(), "exact": measured(1.0, 0.0)}) == []


def test_every_limit_is_held_in_every_mode_and_both_values_are_said():
    found = Gate(1.02, 0.03).check({"fast": measured(1.0212345, 0.031), "exact": measured(1.01, 2.5, None)})
    assert found == [
        "fast: perplexity over the reference's is 1.02123 +- 0.001, the gate allows 1.02",
        "fast: mean KL divergence in nats is 0.031 +- 0.001, the gate allows 0.03",
        "exact: mean KL divergence in nats is 2.5, the gate allows 0.03",
    ]


def test_logits_that_are_not_finite_miss_any_gate():
    broken = measured()
    broken["nonfinite_tokens"], broken["nonfinite"] = 1200, [{"window": 3, "position": 7}]
    (finding,) = Gate(max_kl=1e9).check({"fast": broken})
    assert "1,200 tokens" in finding
    assert "window 3, position 7" in finding


@pytest.mark.parametrize("limits", [(0.0, None), (None, -1.0), (float("nan"), None), (float("inf"), 1.0), (None, None)])
def test_a_gate_that_lets_everything_or_nothing_through_is_a_usage_error(limits: tuple[float | None, float | None]):
    with pytest.raises(UsageError):
        Gate(*limits)


def test_a_build_ends_with_all_findings_and_exit_code_3(tmp_path):
    error = missed(["fast: one", "exact: two"], tmp_path, kept=False)
    assert error.exit_code == 3
    assert all(words in str(error) for words in (str(tmp_path), "fast: one", "exact: two", "remedy"))
