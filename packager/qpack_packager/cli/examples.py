"""Examples in the help of each command, as they are typed: its most usual uses. A test runs every one."""

EXAMPLES = {
    "build": (
        "qpack build Qwen3-0.6B -o bundle",
        "qpack build Qwen3-0.6B -o bundle --target cpu --target cuda:sm_89",
        "qpack build Qwen3-0.6B -o bundle --eval held-out.txt --max-kl 0.2",
    ),
    "plan": (
        "qpack plan Qwen3-0.6B",
        "qpack plan Qwen3-0.6B --batch 1,8 --context 2048 --lm-head int4",
    ),
    "doctor": (
        "qpack doctor Qwen3-0.6B",
        "qpack doctor Qwen3-0.6B --recipe fewest-bytes --format json",
    ),
    "tuning-kit": (
        "qpack tuning-kit Qwen3-0.6B -o kit --target cuda:sm_89",
        "qpack tuning-kit Qwen3-0.6B -o kit --target cuda --kernel-cache cache",
    ),
    "check": (
        "qpack check",
        "qpack check Qwen3-0.6B --fix --diff",
        "qpack check --strict --format sarif --output findings.sarif",
    ),
    "validate": (
        "qpack validate bundle",
        "qpack validate bundle --format json",
    ),
    "inspect": (
        "qpack inspect bundle",
        "qpack inspect bundle --format html -o bundle.html",
        "qpack inspect bundle --format json > bundle.json",
    ),
    "diff": (
        "qpack diff bundle other-bundle",
        "qpack diff bundle other-bundle --format json",
    ),
    "kernels": (
        "qpack kernels gpu-bundle",
        "qpack kernels gpu-bundle --format json > kernels.json",
    ),
    "eval": (
        "qpack eval bundle --text held-out.txt",
        "qpack eval bundle --text held-out.txt --reference Qwen3-0.6B --max-kl 0.2",
        "qpack eval bundle --text held-out.txt --format html -o quality.html",
    ),
    "export": (
        "qpack export bundle -o checkpoint --format compressed-tensors",
        "qpack export bundle -o checkpoint --format gptq",
        "qpack export bundle -o layout --format oci",
    ),
    "sign": (
        "qpack sign bundle --key key.pem",
        "qpack sign bundle --key key.pem --version 1.4.0",
    ),
    "verify": (
        "qpack verify bundle --pubkey key.pub.pem",
        "qpack verify bundle --pubkey key.pub.pem --min-version 1.4.0",
    ),
    "push": (
        "qpack push registry.example.com/models/qwen3:1.4.0 bundle",
        "qpack push registry.example.com/models/qwen3 bundle --format json",
    ),
    "pull": (
        "qpack pull registry.example.com/models/qwen3:1.4.0 -o bundle",
        "qpack pull registry.example.com/models/qwen3 -o bundle --pubkey key.pub.pem",
    ),
}
