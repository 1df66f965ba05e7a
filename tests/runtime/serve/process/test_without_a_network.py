"""A published bundle needs no network: it boots and serves where there is none but the host's own loopback."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[3]
UNPLUGGED = ["unshare", "--user", "--map-root-user", "--net"]
# ioctls and flag: linux/sockios.h, linux/if.h.
SERVE = """
import fcntl, json, socket, struct, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from server_process import ServerProcess

SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
assert [name for _, name in socket.if_nameindex()] == ["lo"]
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    request = struct.pack("16sH14x", b"lo", 0)
    (flags,) = struct.unpack("16xH14x", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request))
    fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | IFF_UP))
with ServerProcess(Path(sys.argv[2])) as server:
    body = {"prompt": "And the LORD said", "max_tokens": 8, "temperature": 0}
    status, answer, _ = server.ready().get("/v1/completions", body)
    print(json.dumps([status, answer["choices"][0]["text"]]))
"""


@pytest.fixture(autouse=True)
def may_unplug() -> None:
    ran = subprocess.run([*UNPLUGGED, "true"], capture_output=True, encoding="utf-8", check=False)
    if ran.returncode:
        pytest.skip(f"this host lets nobody make a network namespace: {ran.stderr.strip()}")


def test_a_bundle_is_served_without_a_network(tiny_bundle: Callable[[str], Path]):
    bundle = tiny_bundle("tiny-qwen3_5")
    command = [*UNPLUGGED, sys.executable, "-c", SERVE, str(TESTS), str(bundle)]
    ran = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    assert ran.returncode == 0, ran.stderr
    status, text = json.loads(ran.stdout.splitlines()[-1])
    assert status == 200
    assert text
