"""What the server says of itself: in the shapes of the document, with numbers that count what was sent."""

from collections import Counter
from typing import Any

import httpx2
import pytest
from jsonschema import Draft202012Validator
from prometheus_client.parser import text_string_to_metric_families

from qpack_runtime.boot import Booted
from qpack_runtime.serve.http.validation import DOCUMENT
from server_process import ServerProcess

COMPLETIONS = "/v1/completions"
PROMPT = "And the LORD said unto"
END = 511
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def check(path: str, status: int, body: Any) -> None:
    schema = DOCUMENT["paths"][path]["get"]["responses"][str(status)]["content"]["application/json"]["schema"]
    Draft202012Validator({**schema, "components": DOCUMENT["components"]}).validate(body)


def samples(http: httpx2.Client) -> Samples:
    """The metrics as Prometheus' own parser reads them."""
    answer = http.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = list(text_string_to_metric_families(answer.text))
    assert [name for name, count in Counter(family.name for family in families).items() if count > 1] == []
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def growth(before: Samples, after: Samples, name: str, **labels: str) -> float:
    """By how much the samples that have at least these labels have grown."""
    wanted = labels.items()
    return sum(
        value - before.get(key, 0) for key, value in after.items() if key[0] == name and wanted <= dict(key[1]).items()
    )


@pytest.mark.parametrize("path", ["/livez", "/startupz", "/readyz", "/stats", "/v1/models"])
def test_an_endpoint_answers_as_the_document_says(http: httpx2.Client, path: str):
    answer = http.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    check(path, 200, answer.json())
    assert http.head(path).headers["content-length"] == answer.headers["content-length"]


def test_the_document_is_served_as_it_is(http: httpx2.Client):
    assert http.get("/openapi.json").json() == DOCUMENT


def test_ready_means_every_bucket_of_the_bundle(http: httpx2.Client, booted: Booted):
    body = http.get("/readyz").json()
    assert body["buckets"] == dict.fromkeys(booted.bundle.manifest["capture_order"], True)
    assert {name for name, value in body.items() if value is True} == {
        "ready", "prefill_graph_ready", "decode_graph_ready", "tokenizer_ready",
    }  # fmt: skip
    phases = http.get("/startupz").json()["phases"]
    assert next(iter(phases)) == "verify"
    assert {"bind", "tokenizer", "first_step", "template"} <= phases.keys()


def test_the_stats_grow_with_use(http: httpx2.Client, booted: Booted):
    before = http.get("/stats").json()
    http.post(COMPLETIONS, json={"prompt": PROMPT, "max_tokens": 9, "logit_bias": {str(END): -100}})
    after = http.get("/stats").json()
    manifest = booted.bundle.manifest
    assert (after["context"], after["slots"]) == (manifest["context"], manifest["slots"])
    assert (after["running"], after["waiting"], after["queue_limit"]) == (0, 0, 64)
    grown = {
        new["name"]: new["steps"] - old["steps"]
        for old, new in zip(before["buckets"], after["buckets"], strict=True)
        if new["steps"] != old["steps"]
    }
    assert grown == {"prefill-t16-c64": 1, "decode-b1-c64": 8}
    for old, new in zip(before["buckets"], after["buckets"], strict=True):
        assert (new["seconds"] > old["seconds"]) == (new["name"] in grown)


def test_the_stats_tell_the_defaults_that_a_request_gets(http: httpx2.Client):
    """The tiny bundle recommends nothing, so OpenAI's hold."""
    defaults = http.get("/stats").json()["defaults"]
    assert defaults == {"temperature": 1, "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1}
    asked = {"prompt": PROMPT, "max_tokens": 20, "seed": 4}
    spelled = http.post(COMPLETIONS, json=asked | defaults).json()["choices"]
    assert http.post(COMPLETIONS, json=asked).json()["choices"] == spelled


def test_the_metrics_count_what_was_sent(http: httpx2.Client, booted: Booted):
    prompt = booted.tokenizer.encode(PROMPT).ids
    asked: dict[str, Any] = {
        "prompt": prompt, "max_tokens": 7, "temperature": 0, "logit_bias": {str(END): -100}, "session": "metrics",
    }  # fmt: skip
    before = samples(http)
    for fields in ({}, {"stream": True}, {"n": 2, "session": "others"}, {"stop": " ", "session": "others"}):
        assert http.post(COMPLETIONS, json=asked | fields).status_code == 200
    longer = http.post(COMPLETIONS, json=asked | {"prompt": prompt * 2, "max_tokens": 1}).json()
    for path, body in ((COMPLETIONS, {}), ("/v1/nothing", {}), ("/page/../etc", {})):
        http.post(path, json=body)
    after = samples(http)

    def grown(name: str, **labels: str) -> float:
        return growth(before, after, name, **labels)

    assert grown("qpack_requests_total", endpoint=COMPLETIONS, status="200") == 5
    assert grown("qpack_requests_total", endpoint=COMPLETIONS, status="400") == 1
    assert grown("qpack_requests_total", endpoint="other", status="404") == 2
    assert grown("qpack_request_success_total", finish_reason="length") == 5
    assert grown("qpack_request_success_total", finish_reason="stop") == 1
    assert grown("qpack_prompt_tokens_total") == 5 * len(prompt) + 2 * len(prompt)
    assert grown("qpack_cached_prompt_tokens_total") == longer["usage"]["prompt_tokens_details"]["cached_tokens"]
    stopped = grown("qpack_generation_tokens_total") - 4 * 7 - 1
    assert 1 <= stopped <= 7
    for histogram in ("queue_time", "time_to_first_token", "e2e_request_latency"):
        assert grown(f"qpack_{histogram}_seconds_count") == 6
    assert grown("qpack_time_per_output_token_seconds_count") == grown("qpack_generation_tokens_total") - 6
    steps = grown("qpack_steps_total")
    assert steps == grown("qpack_graph_replays_total") == grown("qpack_step_seconds_count")
    stats = http.get("/stats").json()
    assert sum(bucket["steps"] for bucket in stats["buckets"]) >= steps
    assert (grown("qpack_requests_refused_total"), grown("qpack_requests_cancelled_total")) == (0, 0)
    assert {label for name, labels in after for key, label in labels if key == "endpoint"} <= {
        *DOCUMENT["paths"], "other",
    }  # fmt: skip


def test_a_full_queue_is_counted_and_named(server: ServerProcess, http: httpx2.Client):
    """More sequences than slots and queue could ever hold are no matter of waiting."""
    before = samples(http)
    answer = http.post(COMPLETIONS, json={"prompt": PROMPT, "n": 128})
    assert answer.status_code == 400
    assert "at most 68 at once" in answer.json()["error"]["message"]
    assert growth(before, samples(http), "qpack_requests_refused_total") == 0
