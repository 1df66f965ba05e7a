"""Opening a bundle: the one place that decides whether it may be used.

Order: the manifest can be read -> its version is ours -> it is undamaged and follows the schema -> every file is listed
and whole -> programs, buffers, tensors and memory agree -> kernels are what the manifest says, launch tables carry out
the programs. Findings are collected as far as a later check makes sense.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from qpack_schemas.bundle_files import MANIFEST, check_files
from qpack_schemas.bundle_rules import PROGRAM_PATHS, check_layout, read_weight_files, shared_buffers
from qpack_schemas.errors import Finding, InputError, IntegrityError, VersionError
from qpack_schemas.manifest import CONTRACT_VERSION, KNOWN_FEATURES, SCHEMA_VERSION, Manifest, checksum_of
from qpack_schemas.program import Kind, Program
from qpack_schemas.schema_check import check_schema
from qpack_schemas.strict_json import JsonValue, dump_canonical, load_strict
from qpack_schemas.target_rules import Tables, check_tables, check_target_files, read_tables
from qpack_schemas.tensor_file import TensorSpan


@dataclass(frozen=True)
class Bundle:
    """A bundle that kept every rule."""

    path: Path
    bundle_id: str  # sha256 of manifest.json
    manifest: Manifest
    programs: Mapping[Kind, Program]
    tensors: Mapping[str, tuple[Path, TensorSpan]]
    tables: Tables  # target -> kind -> launch table; none for "cpu"

    def moved_to(self, path: Path) -> "Bundle":
        """The same after its directory has been renamed to `path`."""
        places = {name: (path / file.relative_to(self.path), span) for name, (file, span) in self.tensors.items()}
        return replace(self, path=path, tensors=places)


def open_bundle(path: Path, *, digests: bool = True) -> Bundle:
    """The verified bundle at `path`. With `digests` every byte is read and hashed; without, only sizes are compared.

    Raises InputError if there is no directory, VersionError if the bundle needs another version, IntegrityError with
    all findings if it is damaged.
    """
    if not path.is_dir():
        raise InputError("is no directory", where=str(path), remedy="name the directory of a bundle")
    raw, document = _read_manifest(path)
    newer = _check_version(document, path)
    findings = _check_manifest(raw, document, tolerate_unknown=newer)
    if any(finding.where != MANIFEST for finding in findings):  # it does not follow the schema
        raise _damaged(path, findings)
    manifest = cast(Manifest, document)
    broken, readable = check_files(path, manifest["files"], digests=digests)
    findings += broken
    if any(entry["path"] not in readable for entry in manifest["files"]):
        raise _damaged(path, findings)
    # A file with a wrong digest is still looked into: which buffer is wrong tells more than that something is.
    programs, broken = _read_programs(path, manifest, tolerate_unknown=newer)
    findings += broken
    tensors, broken = read_weight_files(path, manifest)
    findings += broken
    tables, broken = read_tables(path, manifest, tolerate_unknown=newer)
    findings += check_target_files(path, manifest)
    if len(programs) == len(PROGRAM_PATHS):
        broken += check_layout(manifest, programs)
        # Tables are compared with programs, so both must be sound.
        broken = broken or check_tables(manifest, programs, shared_buffers(manifest), tables)
    findings += broken
    if findings:
        raise _damaged(path, findings)
    places = {name: (path / file, span) for name, (file, span) in tensors.items()}
    return Bundle(path, hashlib.sha256(raw).hexdigest(), manifest, programs, places, tables)


def _damaged(path: Path, findings: list[Finding]) -> IntegrityError:
    unique = list(dict.fromkeys(findings))
    count = "1 finding" if len(unique) == 1 else f"{len(unique)} findings"
    return IntegrityError(
        f"the bundle is damaged ({count}):", unique, where=str(path), remedy="copy or build the bundle again"
    )


def _read_manifest(path: Path) -> tuple[bytes, dict[str, JsonValue]]:
    file = path / MANIFEST
    try:
        if file.is_symlink() or (file.exists() and not file.is_file()):
            raise _damaged(path, [Finding(MANIFEST, "is not a regular file; a bundle holds only its own files")])
        raw = file.read_bytes()
        document = load_strict(file)
    except (InputError, OSError) as error:
        message = error.message if isinstance(error, InputError) else error.strerror or str(error)
        raise _damaged(path, [Finding(MANIFEST, message)]) from None
    if not isinstance(document, dict):
        raise _damaged(path, [Finding(MANIFEST, "is not a JSON object")])
    return raw, cast(dict[str, JsonValue], document)


def _check_version(document: Mapping[str, JsonValue], path: Path) -> bool:
    """True if the manifest is of a newer minor version than ours."""
    said = str(document.get("schema_version"))
    version = _numbers(said)
    if len(version) != 2:
        raise _damaged(path, [Finding(f"{MANIFEST}#/schema_version", f"{said[:80]!r} is not MAJOR.MINOR")])
    ours = ".".join(map(str, SCHEMA_VERSION))
    findings: list[Finding] = []
    if version[0] != SCHEMA_VERSION[0]:
        findings.append(Finding(f"{MANIFEST}#/schema_version", f"is {said}, this qpack reads {ours}"))
    features = document.get("features_required")
    features = cast(list[JsonValue], features) if isinstance(features, list) else []
    for name in sorted(set(map(str, features)) - KNOWN_FEATURES):
        findings.append(Finding(f"{MANIFEST}#/features_required", f"needs the unknown feature {name!r}"))
    needs = str(document.get("min_runtime"))
    if _numbers(needs) > _numbers(CONTRACT_VERSION):
        message = f"needs qpack {needs} or newer, this is {CONTRACT_VERSION}"
        findings.append(Finding(f"{MANIFEST}#/min_runtime", message))
    if findings:
        raise VersionError(
            "the bundle was made for another version:", findings, where=str(path), remedy="upgrade qpack or build again"
        )
    return version[1] > SCHEMA_VERSION[1]


def _numbers(version: str) -> tuple[int, ...]:
    """1.12 -> (1, 12); empty if it is no version. Limited in length, because converting digits takes quadratic time."""
    return tuple(map(int, version.split("."))) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})*", version) else ()


def _check_manifest(raw: bytes, document: JsonValue, *, tolerate_unknown: bool) -> list[Finding]:
    findings: list[Finding] = []
    try:
        canonical = dump_canonical(document)
    except RecursionError:  # CPython 3.12 writes less deep than it reads
        return [Finding(f"{MANIFEST}#", "is nested too deeply")]
    if raw != canonical:
        findings.append(Finding(MANIFEST, "is not in canonical form, so its bytes were changed after the build"))
    if (exact := checksum_of(document)) != document.get("checksum"):
        message = f"checksum is {document.get('checksum')}, the contents give {exact}: the manifest was changed"
        findings.append(Finding(MANIFEST, message))
    return findings + check_schema(document, "manifest.v1.schema.json", MANIFEST, tolerate_unknown=tolerate_unknown)


def _read_programs(
    path: Path, manifest: Manifest, *, tolerate_unknown: bool
) -> tuple[dict[Kind, Program], list[Finding]]:
    listed = {entry["path"] for entry in manifest["files"]}
    programs: dict[Kind, Program] = {}
    findings: list[Finding] = []
    for kind, file in PROGRAM_PATHS.items():
        if file not in listed:
            findings.append(Finding(f"{MANIFEST}#/files", f"lists no {file}"))
            continue
        try:
            document = load_strict(path / file)
        except InputError as error:
            findings.append(Finding(file, error.message))
            continue
        broken = check_schema(document, "program.v1.schema.json", file, tolerate_unknown=tolerate_unknown)
        findings += broken
        if not broken:
            programs[kind] = Program.from_json(document)
    return programs, findings
