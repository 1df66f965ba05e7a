"""A server of a tiny bundle, which the tests of the HTTP API share, and the same bundle booted in this process: what it
says there, the server must say."""

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from openai import OpenAI

from qpack_runtime.boot import Booted, boot
from qpack_runtime.generate import Generation, generate
from qpack_runtime.sampling_options import SamplingOptions
from server_process import ServerProcess

Alone = Callable[..., Generation]


@pytest.fixture(scope="session")
def bundle(tiny_bundle: Callable[[str], Path]) -> Path:
    return tiny_bundle("tiny-qwen3_5")


@pytest.fixture(scope="session")
def server(bundle: Path) -> Iterator[ServerProcess]:
    with ServerProcess(bundle) as server:
        yield server.ready()
        assert server.complaints() == []


@pytest.fixture(scope="session")
def client(server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="session")
def http(server: ServerProcess) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=None) as http:
        yield http


@pytest.fixture(scope="session")
def booted(bundle: Path) -> Booted:
    return boot(bundle)


@pytest.fixture(scope="session")
def alone(booted: Booted) -> Alone:
    """alone(prompt, max_tokens, seed=7, ...): the answer to a text or ids, with the options of SamplingOptions."""

    def get(prompt: str | list[int], max_tokens: int, **options) -> Generation:
        ids = booted.tokenizer.encode(prompt).ids if isinstance(prompt, str) else prompt
        options = SamplingOptions(**{"temperature": 1.0, **options})
        *_, generation = generate(booted, ids, max_tokens=max_tokens, options=options)
        return generation

    return get
