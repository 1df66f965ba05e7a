"""What is signed: an in-toto statement that names a bundle by its bundle_id and says how it was built.

in-toto.io/Statement/v1 with the predicate slsa.dev/provenance/v1. The build writes one without a version; whoever signs
adds it, as an annotation of the subject.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from qpack_delivery.signing.envelope import parse_json
from qpack_delivery.signing.semver import GRAMMAR, is_version
from qpack_schemas.errors import InputError
from qpack_schemas.strict_json import JsonValue, dump_compact

PAYLOAD_TYPE = "application/vnd.in-toto+json"
_STATEMENT, _PREDICATE = "https://in-toto.io/Statement/v1", "https://slsa.dev/provenance/v1"
_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Statement:
    document: Mapping[str, JsonValue]
    bundle_id: str
    version: str | None  # None: whoever signed it said none
    built: bytes  # without the version, in the one spelling: what the build has written

    @classmethod
    def parse(cls, data: bytes, where: str) -> "Statement":
        """Raises InputError if it isn't a statement of that kind about one file."""
        document = parse_json(data, where)
        for key, wanted in (("_type", _STATEMENT), ("predicateType", _PREDICATE)):
            if document.get(key) != wanted:
                raise InputError(f"is no SLSA provenance: its {key} is not {wanted}", where=where)
        subjects = document.get("subject")
        if not isinstance(subjects, list) or len(subjects) != 1:
            raise InputError("does not have one subject", where=where)
        bundle_id = _at(subjects[0], "digest", "sha256")
        if not isinstance(bundle_id, str) or not _SHA256.fullmatch(bundle_id):
            raise InputError("does not name its subject by a sha256", where=where)
        annotations = subjects[0].get("annotations", {})
        if not isinstance(annotations, dict):
            raise InputError("has annotations that are no object", where=where)
        version = annotations.get("version")
        if version is not None and (not isinstance(version, str) or not is_version(version)):
            raise InputError(f"annotates its subject with a version that is none: it must be {GRAMMAR}", where=where)
        try:
            return cls(document, bundle_id, version, dump_compact(_versioned(document, None)))
        except RecursionError:  # CPython 3.12 writes less deep than it reads
            raise InputError("is nested too deeply", where=where) from None

    def encode(self, version: str | None) -> bytes:
        """The statement as it is signed: the same about the subject of this version."""
        return dump_compact(_versioned(self.document, version))

    @property
    def builder(self) -> str | None:
        builder = _at(self.document, "predicate", "runDetails", "builder", "id")
        return builder if isinstance(builder, str) else None

    @property
    def revision(self) -> str | None:
        """The git commit that it was built from, if one of the inputs is named by it."""
        commits = (_at(one, "digest", "gitCommit") for one in self._dependencies())
        return next((commit for commit in commits if isinstance(commit, str)), None)

    @property
    def inputs(self) -> list[tuple[str, str]]:
        """(name or URI, `algorithm:digest`) of everything that the build read."""
        found: list[tuple[str, str]] = []
        for one in self._dependencies():
            digests = _at(one, "digest")
            if isinstance(digests, dict) and digests:
                algorithm = min(digests)
                found.append((str(one.get("name") or one.get("uri")), f"{algorithm}:{digests[algorithm]}"))
        return found

    def _dependencies(self) -> Iterator[dict[str, Any]]:
        dependencies = _at(self.document, "predicate", "buildDefinition", "resolvedDependencies")
        yield from (one for one in dependencies or [] if isinstance(one, dict))


def _versioned(document: Mapping[str, JsonValue], version: str | None) -> JsonValue:
    subject = dict(document["subject"][0])
    annotations = {**subject.pop("annotations", {}), "version": version}
    if annotations := {key: value for key, value in annotations.items() if value is not None}:
        subject["annotations"] = annotations
    return {**document, "subject": [subject]}


def _at(value: JsonValue, *keys: str) -> JsonValue:
    """The value at a path of objects, None where it ends: predicates of other tools leave things out."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value
