"""The report of an evaluation that never took place."""

from qpack_packager.evaluate.figures import Figures
from qpack_packager.evaluate.gate import Gate
from qpack_packager.evaluate.quality import Quality, verdict


def measured() -> Quality:
    fast: Figures = {
        "perplexity": 9.123456789, "perplexity_stderr": 0.1, "ppl_ratio": 1.05, "ppl_ratio_stderr": None,
        "kl_mean": 1.23456789e-5, "kl_stderr": None, "kl_p99": 0.2, "kl_max": 1.0, "top1_agreement": 0.9,
        "kl_histogram": {"edges": [1e-6, 1.0], "tokens": [0, 5, 6]}, "nonfinite_tokens": 0, "nonfinite": [],
    }  # fmt: skip
    return {
        "text_sha256": "ab" * 32,
        "tokens": 11,
        "windows": 1,
        "window_length": 12,
        "device": "cpu",
        "instructions": "avx2",
        "reference": {"perplexity": 9.0, "perplexity_stderr": None},
        "modes": {"fast": fast},
        "modules": [{"tensor": "model.layers.0.mlp.up_proj.weight", "part": "", "bits": 4, "relative_rms_error": 0.1}],
        "gate": verdict(Gate(1.02), {"fast": fast}),
    }
