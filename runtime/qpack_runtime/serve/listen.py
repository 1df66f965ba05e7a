"""The listening socket, open before anything is booted."""

import resource
import socket

from qpack_schemas.errors import UsageError

IDLE_SECONDS, PROBE_SECONDS, PROBES = 60, 15, 4  # of TCP keepalive: a peer that vanished is noticed after two minutes
UNACKNOWLEDGED_MS = 90_000  # after which the kernel gives up on a peer that takes nothing


def listen(host: str, port: int) -> socket.socket:
    """A bound TCP socket whose connections notice a peer that is gone. Raises UsageError for an address that can't be
    had."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        bound = socket.create_server(address, family=family, backlog=2048)
    except OSError as error:
        problem = (error.strerror or str(error)).partition(" (while")[0]  # the address is told already
        raise UsageError(f"can't listen on {host} port {port}: {problem}", remedy="give --host and --port") from None
    for option, value in (
        (socket.TCP_KEEPIDLE, IDLE_SECONDS),
        (socket.TCP_KEEPINTVL, PROBE_SECONDS),
        (socket.TCP_KEEPCNT, PROBES),
        (socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS),
    ):  # connections inherit them
        bound.setsockopt(socket.IPPROTO_TCP, option, value)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a connection is a descriptor
    return bound
