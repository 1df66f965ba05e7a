"""Whatever encoding, byte order mark or newlines a checkpoint's text came in: the bundle holds the same clean bytes."""

import codecs
import json
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from bundles import ASSETS, SMALL
from qpack_packager.build import build
from qpack_packager.checkpoint.model_text import ModelText
from qpack_packager.declared_encodings import DeclaredEncodings
from qpack_packager.progress import Progress
from qpack_packager.textfix import fix as fix_module
from qpack_packager.textfix.kinds import Kind
from qpack_packager.textfix.report import Problem
from qpack_schemas.bundle import Bundle, open_bundle
from qpack_schemas.errors import InputError

NAMES = ("config.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")
COMMENT = "模型配置：请勿用记事本编辑，修改后需要重新运行转换脚本，否则分词器会加载失败。"  # noqa: RUF001

Change = Callable[[bytes], bytes]
CHANGES: dict[str, tuple[Change, str, str, bool, str]] = {  # change -> encoding, known by, BOM, newlines
    "CRLF": (lambda data: data.replace(b"\n", b"\r\n"), "utf-8", "utf-8", False, "crlf"),
    "BOM": (lambda data: codecs.BOM_UTF8 + data, "utf-8", "bom", True, "lf"),
    "UTF-16 with BOM": (lambda data: data.decode("utf-8").encode("utf-16"), "utf-16-le", "bom", True, "lf"),
    "UTF-16 without BOM": (
        lambda data: data.decode("utf-8").encode("utf-16-le"), "utf-16-le", "nul-pattern", False, "lf",
    ),
    "GBK": (lambda data: data.decode("utf-8").encode("gbk"), "gb18030", "inferred", False, "lf"),
}  # fmt: skip


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """tiny-qwen3_5 with a Chinese comment in each small text file, so that an encoding shows."""
    folder = Path(shutil.copytree(ASSETS / "tiny-qwen3_5", tmp_path / "source"))
    for name in NAMES:
        path = folder / name
        if name.endswith(".json"):
            document = {"_comment": COMMENT, **json.loads(path.read_text(encoding="utf-8"))}
            path.write_text(json.dumps(document, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
        else:
            path.write_text(f"{{# {COMMENT} #}}\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    return folder


def bundle_of(source: Path, output: Path, *flags: str) -> Bundle:
    build(ModelText(source, DeclaredEncodings.parse(flags)), output, SMALL, Progress("plain"))
    return open_bundle(output)


def model_files(bundle: Bundle) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (bundle.path / "model").iterdir()}


@pytest.mark.parametrize("change", CHANGES)
def test_a_variant_gives_the_same_files_as_the_clean_checkpoint(change: str, source: Path, tmp_path: Path):
    """BELLE#495, CowAgent#1743, pip#733."""
    clean = bundle_of(source, tmp_path / "clean")
    function, encoding, known_by, bom, newlines = CHANGES[change]
    for name in NAMES:
        (source / name).write_bytes(function((source / name).read_bytes()))
    bundle = bundle_of(source, tmp_path / "variant")
    assert model_files(bundle) == model_files(clean)
    assert bundle.manifest["probes"] == clean.manifest["probes"]
    facts = {entry["path"]: entry for entry in bundle.manifest["text"]}
    for name in NAMES:
        entry = facts[f"model/{name}"]
        assert codecs.lookup(str(entry["encoding"])) == codecs.lookup(encoding)
        assert (entry["known_by"], entry["bom"], entry["newlines"]) == (known_by, bom, newlines), name
        assert entry["source_sha256"] != entry["sha256"]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be", "utf-32", "gb18030"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_tokenizer_in_another_encoding_gives_the_same_ids(encoding: str, newline: str, source: Path, tmp_path: Path):
    """Its byte alphabet is no language; in GB18030 it takes four bytes a character."""
    clean = bundle_of(source, tmp_path / "clean")
    text = (source / "tokenizer.json").read_text(encoding="utf-8")
    (source / "tokenizer.json").write_bytes(text.replace("\n", newline).encode(encoding))
    bundle = bundle_of(source, tmp_path / "variant")
    assert model_files(bundle) == model_files(clean)
    assert bundle.manifest["probes"] == clean.manifest["probes"]


def test_a_single_byte_encoding_is_refused_naming_the_flag_and_taken_when_declared(source: Path, tmp_path: Path):
    path = source / "generation_config.json"
    document = {**json.loads(path.read_text(encoding="utf-8")), "_comment": "Größe für Rückfragen ändern"}
    path.write_bytes(json.dumps(document, ensure_ascii=False).encode("cp1252"))
    with pytest.raises(InputError, match="--encoding") as caught:
        bundle_of(source, tmp_path / "bundle")
    assert caught.value.where == str(path)
    assert not (tmp_path / "bundle").exists()
    bundle = bundle_of(source, tmp_path / "bundle", "generation_config.json=cp1252")
    held = json.loads(model_files(bundle)["generation_config.json"])
    assert held["_comment"] == "Größe für Rückfragen ändern"
    entry = next(e for e in bundle.manifest["text"] if e["path"] == "model/generation_config.json")
    assert (entry["encoding"], entry["known_by"]) == ("cp1252", "declared")


def test_a_repair_that_changes_a_prompt_is_an_error(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Planted: a canonical form that loses the line after a tag, as a careless change of line ends would."""
    canonicalize = fix_module.canonicalize

    def careless(text: str, kind: Kind, vocabulary: Collection[str]) -> tuple[str, list[Problem]]:
        canonical, problems = canonicalize(text, kind, vocabulary)
        return (canonical.replace("<|im_start|>", "") if kind is Kind.TEMPLATE else canonical), problems

    monkeypatch.setattr(fix_module, "canonicalize", careless)
    with pytest.raises(InputError, match="other prompts") as caught:
        bundle_of(source, tmp_path / "bundle")
    assert caught.value.where == str(source / "chat_template.jinja")


def test_what_looks_wrong_in_a_template_is_noted(source: Path, tmp_path: Path):
    path = source / "chat_template.jinja"
    path.write_text("{# \ufffd #}" + path.read_text(encoding="utf-8"), encoding="utf-8")
    notes = bundle_of(source, tmp_path / "bundle").manifest["source"]["notes"]
    assert any(note.startswith("chat_template.jinja: ") for note in notes), notes


def test_a_licence_is_carried_over_whatever_its_encoding(source: Path, tmp_path: Path):
    (source / "LICENSE").write_text("Apache License\n", encoding="utf-8")
    (source / "NOTICE.txt").write_bytes("Größe".encode("cp437"))
    bundle = bundle_of(source, tmp_path / "bundle")
    assert (bundle.path / "LICENSES" / "LICENSE").read_text(encoding="utf-8") == "Apache License\n"
    assert (bundle.path / "LICENSES" / "NOTICE.txt").read_bytes() == "Größe".encode("cp437")
    entry = next(e for e in bundle.manifest["text"] if e["path"] == "LICENSES/NOTICE.txt")
    assert entry["encoding"] is None
    assert any("NOTICE.txt" in note for note in bundle.manifest["source"]["notes"])
    assert bundle.manifest["source"]["licenses"] == ["LICENSES/LICENSE", "LICENSES/NOTICE.txt"]
