"""`qpack export`: what lies beside the weights, what is refused, and that the same bundle gives the same bytes."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import transformers
from click.testing import CliRunner

from bundles import SMALL, build_bundle
from checkpoints import read_config
from qpack_packager.bundle_writer import BundleWriter
from qpack_packager.cli import main
from qpack_packager.export import export as export_module
from qpack_packager.export.export import FormatName
from qpack_schemas.bundle import open_bundle
from qpack_schemas.errors import IntegrityError, UsageError

from .conftest import TINY_QWEN3, Built
from .exports import exported, read

FORMATS: tuple[FormatName, ...] = ("compressed-tensors", "gptq")
TEXT = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*")}


@pytest.mark.parametrize("format_name", FORMATS)
def test_the_same_bundle_gives_the_same_bytes(format_name: FormatName, built: Callable[[str], Built], tmp_path: Path):
    made = built("multimodal")
    copy = Path(shutil.copytree(made.bundle, tmp_path / "copy"))
    again = exported(copy, tmp_path / "deeper" / "again", format_name)
    assert contents(again) == contents(made.export(format_name))
    assert not any(b"/tmp/" in data for name, data in contents(again).items() if not name.endswith(".safetensors"))


@pytest.mark.parametrize("format_name", FORMATS)
def test_text_is_that_of_the_bundle(format_name: FormatName, built: Callable[[str], Built]):
    made = built("multimodal")
    checkpoint = made.export(format_name)
    for name in TEXT:
        assert (checkpoint / name).read_bytes() == (made.bundle / "model" / name).read_bytes()
    words = transformers.AutoTokenizer.from_pretrained(checkpoint)
    assert words.encode("In the beginning") == transformers.AutoTokenizer.from_pretrained(made.checkpoint).encode(
        "In the beginning"
    )


def test_licences_come_along(tmp_path: Path):
    source = Path(shutil.copytree(TINY_QWEN3, tmp_path / "source"))
    (source / "LICENSE").write_text("Anyone may.\n", encoding="utf-8")
    bundle = build_bundle(source, tmp_path / "bundle", SMALL)
    assert (exported(bundle, tmp_path / "export", "gptq") / "LICENSE").read_bytes() == b"Anyone may.\n"


def test_a_multimodal_config_becomes_that_of_its_text_model(built: Callable[[str], Built]):
    made = built("multimodal")
    source, config = read_config(made.checkpoint), read_config(made.export("compressed-tensors"))
    ours = (
        "architectures",
        "dtype",
        "model_type",
        "quantization_config",
        "tie_word_embeddings",
        "transformers_version",
    )
    kept = {key: value for key, value in source["text_config"].items() if key not in ours and key[:4] != "mtp_"}
    assert {key: value for key, value in config.items() if key not in ours} == kept
    assert config["architectures"] == ["Qwen3_5ForCausalLM"]
    assert config["model_type"] == "qwen3_5_text"
    assert config["dtype"] == "bfloat16"
    loaded = transformers.AutoConfig.from_pretrained(made.export("compressed-tensors"))
    assert type(loaded).__name__ == "Qwen3_5TextConfig"


@pytest.mark.parametrize(
    ("case", "tied", "embedding", "head"),
    [
        ("tied, int8 both", True, "F32", None),
        ("tied, dense both", True, "BF16", None),
        ("int4 head, dense embedding", False, "BF16", "packed"),
        ("multimodal", False, "F32", "BF16"),
        ("biases, untied", False, "F32", "F32"),
    ],
)
def test_heads_and_embeddings(case: str, tied: bool, embedding: str, head: str | None, built: Callable[[str], Built]):
    """One tensor where the bundle has one; numbers of the bundle's dtype, or float32 for codes that no engine takes."""
    checkpoint = built(case).export("compressed-tensors")
    assert read_config(checkpoint)["tie_word_embeddings"] is tied
    names = {"torch.float32": "F32", "torch.bfloat16": "BF16"}
    found = {name: names.get(str(tensor.dtype)) for name, tensor in read(checkpoint).items()}
    assert found["model.embed_tokens.weight"] == embedding
    assert ("packed" if "lm_head.weight_packed" in found else found.get("lm_head.weight")) == head


def test_the_card_names_bundle_sources_and_dtype(built: Callable[[str], Built]):
    made = built("int4 head, dense embedding")
    card = (made.export("gptq") / "README.md").read_text(encoding="utf-8")
    bundle = open_bundle(made.bundle)
    assert bundle.bundle_id in card
    assert all(file["sha256"] in card for file in bundle.manifest["source"]["files"])
    assert "vllm serve DIR --dtype bfloat16" in card
    assert "the head in int4" in card


def test_a_damaged_bundle_is_refused(built: Callable[[str], Built], tmp_path: Path):
    copy = Path(shutil.copytree(built("tied, int8 both").bundle, tmp_path / "copy"))
    file = copy / "weights" / "00000.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    with pytest.raises(IntegrityError, match="weights/00000"):
        exported(copy, tmp_path / "export", "gptq")
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


def test_nothing_is_written_over(built: Callable[[str], Built], tmp_path: Path):
    (tmp_path / "export").mkdir()
    with pytest.raises(UsageError, match="exists already"):
        exported(built("tied, int8 both").bundle, tmp_path / "export", "gptq")


def test_nothing_is_there_unless_it_is_whole(
    built: Callable[[str], Built], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(writer: BundleWriter, *_: object) -> None:
        (writer.folder / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export_module, "write_shards", full)
    with pytest.raises(OSError, match="No space"):
        exported(built("tied, int8 both").bundle, tmp_path / "export", "gptq")
    assert not list(tmp_path.iterdir())


def test_layers_without_codes_are_refused(tmp_path: Path):
    bundle = build_bundle(TINY_QWEN3, tmp_path / "bundle", replace(SMALL, rules=(("*_proj.weight", "bf16"),)))
    with pytest.raises(UsageError, match="no weight of a layer is quantized"):
        exported(bundle, tmp_path / "export", "compressed-tensors")


def test_the_command_says_where_the_checkpoint_is(built: Callable[[str], Built], tmp_path: Path):
    bundle, output = str(built("tied, int8 both").bundle), str(tmp_path / "export")
    result = CliRunner().invoke(main, ["export", bundle, "-o", output, "--format", "gptq", "--progress", "json"])
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"{output} is a checkpoint in gptq's format; its README.md says how to serve it\n"
    events = [json.loads(line) for line in result.stderr.splitlines()]
    assert events[0]["phase"] == "weights"
    assert (
        events[-1]["done"] == events[-1]["total"] == sum(tensor.nbytes for tensor in read(tmp_path / "export").values())
    )
    again = CliRunner().invoke(main, ["export", bundle, "-o", output, "--format", "gptq"])
    assert again.exit_code == UsageError.exit_code
