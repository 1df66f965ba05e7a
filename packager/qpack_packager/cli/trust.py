"""Commands about who vouches for a bundle."""

import json
import os
from pathlib import Path

import click

from qpack_packager.cli.flags import BUNDLE, FORMAT
from qpack_schemas.report import errors_reported


@click.command()
@BUNDLE
@click.option(
    "--key",
    required=True,
    type=click.Path(path_type=Path),
    help="A private key in PEM: Ed25519, or ECDSA on P-256 or P-384. QPACK_KEY_PASSPHRASE opens an encrypted one.",
)
@click.option("--version", "bundle_version", metavar="VERSION", help="Such as 1.4.0; --min-version compares with it.")
@FORMAT
def sign(bundle: Path, key: Path, bundle_version: str | None, output_format: str) -> None:
    """Signs BUNDLE: signature.dsse.json beside its own files.

    What is signed is the provenance that the build wrote, which names every byte by the bundle_id; each is hashed
    before. A second key adds its signature."""
    with errors_reported(extra="packager", as_json=output_format == "json"):
        from qpack_delivery.signing.detached import SIGNATURE
        from qpack_delivery.signing.keys import PASSPHRASE, PrivateKey
        from qpack_delivery.signing.sign import sign_bundle

        passphrase = os.environb.get(PASSPHRASE.encode("ascii"))
        signed = sign_bundle(bundle, PrivateKey.read(key, passphrase), bundle_version)
        if output_format == "json":
            facts = {
                "bundle_id": signed.bundle_id,
                "version": signed.version,
                "keyid": signed.keyid,
                "algorithm": signed.algorithm,
                "keyids": signed.keyids,
                "signature": str(bundle / SIGNATURE),
            }
            click.echo(json.dumps(facts))
        else:
            named = "without a version" if signed.version is None else f"as version {signed.version}"
            click.echo(f"{bundle} is signed {named}: {SIGNATURE}")
            for keyid in signed.keyids:
                click.echo(f"  key {keyid}" + (f" ({signed.algorithm}, now)" if keyid == signed.keyid else ""))


@click.command()
@BUNDLE
@click.option(
    "--pubkey",
    "pubkeys",
    multiple=True,
    required=True,
    type=click.Path(path_type=Path),
    help="A public key in PEM whose signature counts; of several, one is enough.",
)
@click.option(
    "--min-version", metavar="VERSION", help="Refuse a bundle that was signed as an older version, or as none."
)
@FORMAT
def verify(bundle: Path, pubkeys: tuple[Path, ...], min_version: str | None, output_format: str) -> None:
    """Checks who has signed BUNDLE, and every byte of it.

    Exit code 8 if none of the keys vouches for it, 5 if it is damaged. Shows what was signed: version, source, builder,
    inputs."""
    with errors_reported(extra="packager", as_json=output_format == "json"):
        from qpack_delivery.signing.verify import Trust, verify_bundle

        verified = verify_bundle(bundle, Trust(pubkeys, min_version))
        statement = verified.statement
        if output_format == "json":
            facts = {
                "verified": True,
                "bundle_id": verified.bundle_id,
                "version": verified.version,
                "signers": [{"keyid": key.keyid, "algorithm": key.algorithm} for key in verified.signers],
                "revision": statement.revision,
                "builder": statement.builder,
                "inputs": [{"name": name, "digest": digest} for name, digest in statement.inputs],
            }
            click.echo(json.dumps(facts))
            return
        click.echo(f"{bundle} is whole and signed")
        signers = [("signed by", f"{key.keyid} ({key.algorithm})") for key in verified.signers]
        inputs = [("input", f"{name}  {digest}") for name, digest in statement.inputs]
        for name, value in [
            ("bundle_id", verified.bundle_id),
            *signers,
            ("version", verified.version or "none"),
            ("revision", statement.revision or "not said"),
            ("builder", statement.builder or "not said"),
            *inputs,
        ]:
            click.echo(f"  {name:<10} {value}")
