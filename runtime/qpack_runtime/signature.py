"""Whether a bundle must be signed, and by whom, before it boots."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qpack_schemas.errors import UsageError

if TYPE_CHECKING:
    from qpack_delivery.signing.verify import Trust


def trust_of(
    require_signature: bool, pubkeys: Sequence[Path], min_version: str | None, *, quick: bool
) -> "Trust | None":
    """None where no signature is asked for. `quick`: the bundle is opened without its digests.

    Raises UsageError for flags that would look like protection and be none, InputError for a file that is no key."""
    if not require_signature:
        if pubkeys or min_version is not None:
            flag = "--pubkey" if pubkeys else "--min-version"
            raise UsageError(
                f"{flag} alone checks no signature", remedy=f"add --require-signature, or leave {flag} out"
            )
        return None
    if not pubkeys:
        raise UsageError("--require-signature needs to know whose", remedy="add --pubkey FILE")
    if quick:
        message = "--require-signature needs --verify full: with quick, altered bytes would not be noticed"
        raise UsageError(message, remedy="leave --verify quick out")
    from qpack_delivery.signing.verify import Trust  # with cryptography, which only a signature needs

    return Trust(tuple(pubkeys), min_version)
