"""The certificate and key of a server that speaks TLS."""

import ssl
from pathlib import Path

from qpack_schemas.errors import InputError


def tls_context(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """None without them. Raises InputError, naming the file, for a pair that can't be used, and OSError for one that
    can't be read."""
    if certificate is None or key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for path in (certificate, key):
        path.read_bytes()  # OpenSSL doesn't say which file it can't read
    try:
        context.load_cert_chain(certificate, key, password=lambda: "")  # else it would ask on the terminal
    except ssl.SSLError as error:
        raise InputError(
            f"is no certificate for the key {key}: {error.reason or error}",
            where=str(certificate),
            remedy="give two PEM files that belong together, the key without a passphrase",
        ) from None
    return context
