"""The server against its own document, by schemathesis: what the document allows is answered as the document says, and
what it doesn't allow is refused as it says."""

from copy import deepcopy
from typing import Any

import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.config import SchemathesisConfig

from qpack_runtime.serve.http.validation import DOCUMENT
from server_process import ServerProcess

EXAMPLES = settings().max_examples * 15 // 100  # of an operation
THOROUGH = EXAMPLES > 15
HEALTH = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
SETTINGS = settings(max_examples=EXAMPLES, suppress_health_check=HEALTH)

CHECKS: dict[str, Any] = {
    "not_a_server_error": {"expected-statuses": ["2xx", "4xx", "503"]},  # a `timeout` can be too short for any answer
    # What keeps to the document can still be too long, name another model or an id that there isn't, or ask for more
    # answers than fit.
    "positive_data_acceptance": {"expected-statuses": ["200", "400", "404", "413", "429", "503"]},
    "negative_data_rejection": {"expected-statuses": ["400", "404", "413", "415"]},
}


def document(mode: str) -> Any:
    """The document for one kind of data. Streams are left unchecked, since schemathesis takes each event for a value of
    the media type's schema; test_streams.py checks them."""
    served = deepcopy(dict(DOCUMENT))
    for path in ("/v1/chat/completions", "/v1/completions"):
        del served["paths"][path]["post"]["responses"]["200"]["content"]["text/event-stream"]["schema"]
    config = {
        "generation": {"mode": mode, "database": "none"},
        "phases": {"coverage": {"enabled": THOROUGH}},  # takes every limit to its end: bodies of 60 MB
        "checks": CHECKS,
    }
    return schemathesis.openapi.from_dict(served, config=SchemathesisConfig.from_dict(config))


ALLOWED, FORBIDDEN = document("positive"), document("negative")


@ALLOWED.parametrize()
@SETTINGS
def test_what_the_document_allows_is_answered_as_it_says(server: ServerProcess, case: schemathesis.Case):
    answer = case.call_and_validate(base_url=f"http://127.0.0.1:{server.port}")
    if case.method == "GET" and "{" not in case.operation.path:
        assert answer.status_code == 200


@FORBIDDEN.include(method="POST").parametrize()
@SETTINGS
def test_what_the_document_forbids_is_refused_as_it_says(server: ServerProcess, case: schemathesis.Case):
    case.call_and_validate(base_url=f"http://127.0.0.1:{server.port}")
