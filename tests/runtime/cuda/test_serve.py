"""`qpack-runtime serve --device cuda` on the stub with interpreted kernels: the real server, host code and tables, one
step launched ahead, and the reference executor's tokens."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cuda_host import HOOKED, TARGET, stubbed
from qpack_runtime.boot import boot
from qpack_runtime.generate import generate
from qpack_runtime.sampling_options import SamplingOptions
from server_process import ServerProcess

COMPLETIONS = "/v1/completions"
REQUESTS: list[dict[str, Any]] = [
    {"prompt": [41, 7, 300, 12, 9, 77], "max_tokens": 6, "temperature": 0.9, "top_k": 20, "seed": 7},
    {"prompt": [33], "max_tokens": 5, "temperature": 0},
    {"prompt": [5, 18, 60, 2, 3], "max_tokens": 4, "temperature": 0.7, "repetition_penalty": 1.2, "seed": 3},
]
OBJECT = {"prompt": [8, 9], "max_tokens": 12, "temperature": 0, "response_format": {
    "type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": [1, 20]}}}}  # fmt: skip


def test_a_gpu_serves_the_references_tokens(stub_library: Path, cuda_bundle: Callable[[str, str], Path]):
    bundle = cuda_bundle("tiny-qwen3", "float32")
    reference = boot(bundle, "reference")
    with ServerProcess(bundle, "--device", "cuda", patch=HOOKED, environment=stubbed(stub_library)) as server:
        ready = server.ready().line("ready")
        assert (ready["device"], ready["target"]) == ("cuda", TARGET)
        assert all(server.get("/readyz")[1]["buckets"].values())
        with ThreadPoolExecutor(4) as pool:
            *answers, constrained = pool.map(lambda body: server.get(COMPLETIONS, body)[1], [*REQUESTS, OBJECT])
        for body, answer in zip(REQUESTS, answers, strict=True):
            options = {name: value for name, value in body.items() if name not in ("prompt", "max_tokens")}
            whole = list(generate(reference, body["prompt"], max_tokens=body["max_tokens"],
                                  options=SamplingOptions(**options)))[-1]  # fmt: skip
            assert answer["choices"][0]["text"] == whole.text
        assert json.loads(constrained["choices"][0]["text"]) in (1, 20)
        first = REQUESTS[1] | {"session": "s", "logprobs": 0}
        tokens = server.get(COMPLETIONS, first)[1]["choices"][0]["logprobs"]["tokens"]
        ids = [reference.tokenizer.token_to_id(reference.tokenizer.encode(token).tokens[0]) for token in tokens]
        again = server.get(COMPLETIONS, first | {"prompt": [*first["prompt"], *ids, 9]})[1]
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        assert server.complaints() == []
