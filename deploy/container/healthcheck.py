"""Docker's HEALTHCHECK: `healthcheck.py http://HOST:PORT/PATH` ends with 0 if that answers 200, otherwise with 1.

It runs every few seconds beside the server, so it imports no HTTP library: that would take most of its time. With https
no certificate is checked: the name in it is not that of the loopback address, where nobody else can answer."""

import socket
import sys

SECONDS = 2
SHOWN = 4096  # bytes, for `docker inspect`

scheme, _, address, path = sys.argv[1].split("/", 3)
host, _, port = address.partition(":")
try:
    with socket.create_connection((host, int(port)), SECONDS) as connection:
        if scheme == "https:":
            import ssl

            connection = ssl._create_unverified_context().wrap_socket(connection)
        connection.sendall(f"GET /{path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode("ascii"))
        with connection.makefile("rb") as answer:
            said = answer.read(SHOWN)
except OSError as error:
    sys.exit(str(error))
head, _, body = said.partition(b"\r\n\r\n")
print(body.decode("utf-8", "replace"))
sys.exit(head.split()[1:2] != [b"200"])
