"""Damage to the files of a bundle: nothing of a bundle that lost, gained or changed a byte is used."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bundles import own_files
from drafts import Draft, assert_found, refusal, replace
from qpack_schemas.bundle import open_bundle
from qpack_schemas.errors import IntegrityError, QpackError, VersionError
from qpack_schemas.strict_json import dump_canonical, dump_compact

FILES = (
    "manifest.json", "programs/decode.json", "programs/prefill.json", "weights/00000.safetensors", "quant_log.jsonl",
    *(f"weights/{index:05}.safetensors" for index in range(1, 5)), "sbom.cdx.json",
    "model/config.json", "model/tokenizer.json", "model/tokenizer_config.json", "model/generation_config.json",
    "model/chat_template.jinja",
)  # fmt: skip


@pytest.fixture(scope="module")
def whole(tiny_bundle: Callable[[str], Path]) -> Path:
    return tiny_bundle("tiny-qwen3")


@pytest.fixture
def bundle(whole: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return Path(shutil.copytree(whole, tmp_path / "bundle"))


@pytest.fixture(scope="module")
def scratch(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One copy for many examples, which repair what they damage."""
    copy = Path(shutil.copytree(whole, tmp_path_factory.mktemp("scratch") / "bundle"))
    yield copy
    open_bundle(copy)


def test_the_files_tried_here_are_all_files_of_a_bundle(whole: Path):
    assert {path.relative_to(whole).as_posix() for path in own_files(whole)} == set(FILES)


@given(file=st.sampled_from(FILES), place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_anywhere_is_refused_naming_the_file(scratch: Path, file: str, place: float, bit: int):
    path = scratch / file
    data = path.read_bytes()
    offset = int(place * len(data))
    path.write_bytes(data[:offset] + bytes([data[offset] ^ 1 << bit]) + data[offset + 1 :])
    try:
        with pytest.raises((IntegrityError, VersionError)) as caught:
            open_bundle(scratch)
        assert file in {finding.where.partition("#")[0] for finding in caught.value.findings}
        assert caught.value.exit_code in (5, 7)
        assert str(scratch) in str(caught.value)
    finally:
        path.write_bytes(data)


@given(file=st.sampled_from(FILES), keep=st.floats(0, 1, exclude_max=True))
def test_a_file_cut_anywhere_is_refused_even_without_digests(scratch: Path, file: str, keep: float):
    path = scratch / file
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    try:
        assert file in {finding.where.partition("#")[0] for finding in refusal(scratch, digests=False)}
    finally:
        path.write_bytes(data)


@pytest.mark.parametrize("file", FILES)
def test_a_missing_file_is_named(bundle: Path, file: str):
    (bundle / file).unlink()
    findings = refusal(bundle)
    assert [finding.where for finding in findings] == [file]
    assert "is missing" in findings[0].message or "No such file" in findings[0].message


@pytest.mark.parametrize(
    "file",
    [
        "extra", "model/extra.py", "weights/00099.safetensors", "kernels/sm_89/x.cubin", ".hidden", "model/.hidden",
        "manifest.json.bak", "model/manifest.json", "model/signature.sig", "quality.html/x",
        "provenance.intoto.jsonl.py", "signature.d/x", "signature.", "asignature.sig",
    ],
)  # fmt: skip
def test_a_file_that_is_not_listed_is_named_wherever_it_lies(bundle: Path, file: str):
    (bundle / file).parent.mkdir(parents=True, exist_ok=True)
    (bundle / file).touch()
    findings = refusal(bundle)
    assert [finding.where for finding in findings] == [file]
    assert "is not listed in the manifest" in findings[0].message


def test_provenance_and_signatures_may_lie_beside_the_manifest(bundle: Path):
    before = open_bundle(bundle).bundle_id
    for file in ("provenance.intoto.jsonl", "signature.sig", "signature.pem"):
        (bundle / file).write_text("detached", encoding="utf-8")
    assert open_bundle(bundle).bundle_id == before


@pytest.mark.parametrize(
    "file", ["manifest.json", "model/config.json", "programs/decode.json", "weights/00000.safetensors"]
)
def test_a_link_to_the_very_same_bytes_is_refused(bundle: Path, whole: Path, file: str):
    (bundle / file).unlink()
    (bundle / file).symlink_to(whole / file)
    for digests in (True, False):
        findings = refusal(bundle, digests=digests)
        assert file in {finding.where for finding in findings}
        assert "a bundle holds only its own files" in findings[0].message


def test_a_manifest_that_leads_outside_is_not_even_read(bundle: Path, tmp_path: Path):
    (tmp_path / "outside").write_text("secret", encoding="utf-8")
    (bundle / "manifest.json").unlink()
    (bundle / "manifest.json").symlink_to(tmp_path / "outside")
    assert [str(f) for f in refusal(bundle)] == [
        "manifest.json: is not a regular file; a bundle holds only its own files"
    ]


@pytest.mark.parametrize("folder", ["model", "weights", "programs"])
def test_a_linked_folder_is_refused(bundle: Path, whole: Path, folder: str):
    shutil.rmtree(bundle / folder)
    (bundle / folder).symlink_to(whole / folder)
    assert_found(refusal(bundle, digests=False), folder, "is a symbolic link to")


def test_a_link_that_leads_nowhere_or_is_not_listed_is_refused(bundle: Path):
    (bundle / "model/extra").symlink_to("/nowhere")
    (bundle / "signature.sig").symlink_to("/nowhere")
    findings = refusal(bundle)
    assert [finding.where for finding in findings] == ["model/extra", "signature.sig"]


@pytest.mark.parametrize(
    "file", ["manifest.json", "model/config.json", "programs/decode.json", "weights/00000.safetensors"]
)
def test_a_pipe_is_refused_and_never_waited_for(bundle: Path, file: str):
    (bundle / file).unlink()
    os.mkfifo(bundle / file)
    assert_found(refusal(bundle, digests=False), file, "is not a regular file")


@pytest.mark.parametrize(
    "file", ["manifest.json", "model/config.json", "programs/decode.json", "weights/00000.safetensors"]
)
def test_a_folder_in_the_place_of_a_file_is_refused(bundle: Path, file: str):
    (bundle / file).unlink()
    (bundle / file).mkdir()
    assert file in {finding.where for finding in refusal(bundle, digests=False)}


def test_folders_deeper_than_the_stack_are_walked(bundle: Path):
    handle = os.open(bundle, os.O_RDONLY)
    try:
        for _ in range(1500):
            os.mkdir("d", dir_fd=handle)
            inner = os.open("d", os.O_RDONLY, dir_fd=handle)
            os.close(handle)
            handle = inner
        os.close(os.open("x", os.O_CREAT | os.O_WRONLY, dir_fd=handle))
    finally:
        os.close(handle)
    try:
        assert refusal(bundle)[0].where == "d/" * 1500 + "x"
    finally:  # pytest would fail to
        subprocess.run(["rm", "-r", bundle / "d"], check=True)


@pytest.mark.parametrize(
    "path",
    ["../outside", "model/../../outside", "/etc/hostname", "model//config.json", "./model/config.json", "model/.", "",
     "model\\config.json", "C:/config.json", "model/config.json\n", "model/\u2024\u2024/x"],
)  # fmt: skip
def test_a_path_that_could_leave_the_bundle_is_refused_before_any_file_is_read(whole: Path, tmp_path: Path, path: str):
    (tmp_path / "outside").write_text("secret", encoding="utf-8")
    draft = Draft.read(whole)
    draft.manifest["files"][0]["path"] = path
    assert_found(refusal(draft.write(tmp_path / "b")), "manifest.json#/files/0/path", "does not match")


MANIFESTS = {
    "empty": b"",
    "no JSON": b"manifest",
    "a list": b"[]\n",
    "a string": b'"manifest"\n',
    "null": b"null\n",
    "an empty object": b"{}\n",
    "NaN": b'{"slots": NaN}\n',
    "infinity": b'{"slots": 1e999}\n',
    "duplicate key": b'{"slots": 1, "slots": 2}\n',
    "not UTF-8": b'{"slots": "\xff"}\n',
    "byte order mark": b"\xef\xbb\xbf{}\n",
    "UTF-16": "{}\n".encode("utf-16"),
    "half a surrogate pair": b'{"slots": "\\ud800"}\n',
    "a Git LFS pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
    "too many digits": b'{"slots": ' + b"1" * 5000 + b"}\n",
    "deep lists": b"[" * 100_000 + b"]" * 100_000,
    "deep objects": b'{"x-a":' * 100_000 + b"1" + b"}" * 100_000,
    "NUL": bytes(4096),
}


@pytest.mark.parametrize("content", MANIFESTS.values(), ids=MANIFESTS)
def test_a_manifest_that_is_no_clean_json_object_is_damage(bundle: Path, content: bytes):
    (bundle / "manifest.json").write_bytes(content)
    assert {finding.where.partition("#")[0] for finding in refusal(bundle)} == {"manifest.json"}


@pytest.mark.parametrize("depth", [100, 500, 940, 990, 1000, 2000, 9000])
@pytest.mark.parametrize(
    ("document", "key"), [("manifest", "x-a"), ("manifest", "files"), ("decode", "x-a"), ("decode", "code")]
)
def test_any_depth_of_nesting_is_opened_or_refused(whole: Path, tmp_path: Path, document: str, key: str, depth: int):
    """`x-*` may hold anything, and anything may stand in a wrong place; the stack of Python ends somewhere."""
    deep = b"[" * depth + b"]" * depth
    draft = Draft.read(whole)
    if document == "manifest":
        bundle = draft.write(tmp_path / "b")
        replace(bundle / "manifest.json", dump_canonical({**draft.manifest, key: "@"}).replace(b'"@"', deep))
        assert {finding.where.partition("#")[0] for finding in refusal(bundle)} == {"manifest.json"}
        return
    program = dump_compact({**draft.programs["decode"], key: "@"}).replace(b'"@"', deep)
    bundle = draft.write(tmp_path / "b", decode=program)
    if key == "code":
        assert {finding.where.partition("#")[0] for finding in refusal(bundle)} == {"programs/decode.json"}
    else:
        with contextlib.suppress(IntegrityError):
            open_bundle(bundle)


def test_a_manifest_in_another_spelling_is_refused(bundle: Path):
    """Same values, other bytes: the bundle_id would be another one."""
    manifest = bundle / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b"\n", b"\r\n"))
    assert_found(refusal(bundle), "manifest.json", "is not in canonical form")


def test_a_manifest_changed_without_its_checksum_is_refused(whole: Path, tmp_path: Path):
    draft = Draft.read(whole)
    draft.manifest["source"]["notes"] = ["trained on the test set"]
    bundle = draft.write(tmp_path / "b", resealed=False)
    assert (bundle / "manifest.json").read_bytes() == dump_canonical(draft.manifest)
    for digests in (True, False):
        assert_found(refusal(bundle, digests=digests), "manifest.json", "the manifest was changed")


def test_a_file_exchanged_for_one_of_equal_size_is_refused_by_its_digest(bundle: Path):
    weights = bundle / "weights/00000.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[:-512] + bytes(512))
    assert_found(refusal(bundle), "weights/00000.safetensors", "the manifest says")


def test_a_program_changed_in_place_is_refused_with_its_digest_and_the_place_in_it(whole: Path, tmp_path: Path):
    draft = Draft.read(whole)
    place = draft.edit("attention", "inputs", "slots", "nowhere")
    findings = refusal(draft.write(tmp_path / "b", resealed=False))
    assert_found(findings, "programs/decode.json", "the manifest says")
    assert_found(findings, place, "'nowhere'")


def test_a_path_without_a_bundle_is_refused(tmp_path: Path):
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "nowhere", tmp_path / "file"):
        with pytest.raises(QpackError, match=r"manifest\.json|is no directory"):
            open_bundle(path)
