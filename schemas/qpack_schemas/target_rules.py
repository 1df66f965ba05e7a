"""The compiled targets of a bundle: every one whole, everything below kernels/ accounted for, its memory exact."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from qpack_schemas.errors import Finding, InputError
from qpack_schemas.kernel_rules import check_kernel
from qpack_schemas.launch_rules import check_table
from qpack_schemas.launch_table import LaunchTable, kernel_folder, table_path
from qpack_schemas.manifest import TARGET_NAME, Kernel, Manifest, Target, compiled_targets
from qpack_schemas.memory import account_target
from qpack_schemas.program import KINDS, Buffer, Kind, Program
from qpack_schemas.schema_check import check_schema
from qpack_schemas.strict_json import load_strict
from qpack_schemas.targets import architecture_number

Tables = Mapping[str, Mapping[Kind, LaunchTable]]  # by target
SCHEMA = "launch_table.v1.schema.json"
KERNELS = "kernels/"


def read_tables(root: Path, manifest: Manifest, *, tolerate_unknown: bool) -> tuple[Tables, list[Finding]]:
    """The launch tables that follow their schema and say the kind and target of their path."""
    listed = {entry["path"] for entry in manifest["files"]}
    tables: dict[str, dict[Kind, LaunchTable]] = {}
    findings: list[Finding] = []
    for target in compiled_targets(manifest["targets"]):
        tables[target] = {}
        for kind in KINDS:
            file = table_path(target, kind)
            if file not in listed:
                findings.append(Finding("manifest.json#/files", f"lists no {file}, which target {target!r} needs"))
                continue
            try:
                document = load_strict(root / file)
            except InputError as error:
                findings.append(Finding(file, error.message))
                continue
            broken = check_schema(document, SCHEMA, file, tolerate_unknown=tolerate_unknown)
            if not broken:
                table = LaunchTable.from_json(document)
                broken = [
                    Finding(f"{file}#/{field}", f"is {said!r}, the file is for {expected!r}")
                    for field, said, expected in (("kind", table.kind, kind), ("target", table.target, target))
                    if said != expected
                ]
                tables[target][kind] = table
            findings += broken
    return tables, findings


def check_target_files(root: Path, manifest: Manifest) -> list[Finding]:
    """Targets and kernels against the files of the bundle, and the kernels against what they say about themselves."""
    digests = {entry["path"]: entry["sha256"] for entry in manifest["files"]}
    expected: set[str] = set()
    findings: list[Finding] = []
    for name, target in compiled_targets(manifest["targets"]).items():
        place = f"manifest.json#/targets/{name}"
        findings += [Finding(f"{place}/{field}", message) for field, message in _target_messages(name, target)]
        expected |= {table_path(name, kind) for kind in KINDS}
        for kernel_name, kernel in target["kernels"].items():
            expected.add(kernel["file"])
            at = f"{place}/kernels/{kernel_name}"
            broken = [
                Finding(f"{at}/{field}", message)
                for field, message in _kernel_messages(name, target, kernel_name, kernel, digests)
            ]
            findings += broken or check_kernel(root, kernel_name, kernel, target)
    stray = sorted(path for path in digests if path.startswith(KERNELS) and path not in expected)
    findings += [Finding(path, "belongs to no target of the manifest") for path in stray]
    return findings


def check_tables(
    manifest: Manifest, programs: Mapping[Kind, Program], shared: Mapping[str, Buffer], tables: Tables
) -> list[Finding]:
    """All tables of all targets against sound programs, and the memory that they need."""
    findings: list[Finding] = []
    for name, target in compiled_targets(manifest["targets"]).items():
        place = f"manifest.json#/targets/{name}"
        for kind, table in tables[name].items():
            where = table_path(name, kind)
            findings += check_table(table, programs[kind], shared, target["kernels"], manifest["buckets"], where)
        launched = {launch.kernel for table in tables[name].values() for launch in table.launches}
        unused = sorted(target["kernels"].keys() - launched)
        findings += [Finding(f"{place}/kernels/{kernel}", "is launched by no table") for kernel in unused]
        work, least = account_target(manifest["files"], manifest["memory"], tables[name], manifest["buckets"])
        for field, said, exact in (
            ("work_bytes", target["work_bytes"], work),
            ("minimum_device_bytes", target["minimum_device_bytes"], least),
        ):
            if said != exact:
                findings.append(Finding(f"{place}/{field}", f"is {said}, the tables need {exact}"))
    return findings


def _target_messages(name: str, target: Target) -> Iterator[tuple[str, str]]:
    """(field, what is wrong with it): the name says architecture and format, and only PTX runs on newer GPUs."""
    parsed = TARGET_NAME.fullmatch(name)
    assert parsed, name
    form = "ptx" if parsed[1] == "ptx" else "cubin"
    if target["format"] != form:
        yield "format", f"is {target['format']!r}, the target's name says {form!r}"
    if architecture_number(target["architecture"]) != int(parsed[2]):
        yield "architecture", f"is {target['architecture']}, the target's name says {parsed[2]}"
    if target["architecture"].endswith("a") and target["scope"] != "exact":
        yield "scope", f"is {target['scope']!r}; {target['architecture']} runs on that GPU only, which is 'exact'"
    if (target["scope"] == "newer") != (form == "ptx"):
        yield "scope", f"is {target['scope']!r}; it is 'newer' for ptx and only for ptx"


def _kernel_messages(
    target_name: str, target: Target, name: str, kernel: Kernel, digests: Mapping[str, str]
) -> Sequence[tuple[str, str]]:
    file = f"{kernel_folder(target_name)}/{name}.{target['format']}"
    messages: list[tuple[str, str]] = []
    if kernel["file"] != file:
        messages.append(("file", f"is {kernel['file']!r}, the kernel's name says {file!r}"))
    elif (listed := digests.get(file)) != kernel["sha256"]:
        messages.append(("sha256", f"is {kernel['sha256']}, among files {file!r} has {listed}"))
    if kernel["shared_bytes"] > target["max_shared_bytes"]:
        most = target["max_shared_bytes"]
        messages.append(
            ("shared_bytes", f"is {kernel['shared_bytes']}, more than the target's max_shared_bytes {most}")
        )
    for field in ("registers", "spills"):
        if (kernel[field] is None) != (target["format"] == "ptx"):
            messages.append((field, f"is {kernel[field]}; it is null for ptx and only for ptx"))
    return messages
