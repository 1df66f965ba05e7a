"""Small model files in many encodings, with the right text or None where only a refusal is right.

Deterministic by seed.
"""

# ruff: noqa: E501, RUF001  # sentences of other scripts, one a line

import codecs
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

SENTENCES = {
    "zh": ["你好", "通义千问助手", "你是一个乐于助人的助手。", "用户的问题如下，请逐步思考后回答。", "昨天晚上下了一场大雨，路上的行人都匆匆忙忙地往家里赶。",
           "训练数据截止到二〇二三年九月，模型可能不了解之后发生的事情。", "免责声明：本软件按“原样”提供，不作任何明示或暗示的保证。", "目录", "未知"],
    "zht": ["你好", "繁體中文助理", "你是一個樂於助人的助理。", "使用者的問題如下，請逐步思考後回答。", "免責聲明：本軟體依「現狀」提供，不作任何明示或默示的保證。",
            "昨天晚上下了一場大雨，路上的行人都匆匆忙忙地趕回家。", "這個專案的目標是讓小型裝置也能順暢地執行大型語言模型。"],
    "ja": ["こんにちは", "東京都", "あなたは親切なアシスタントです。", "次の質問に順を追って考えてから答えてください。", "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。",
           "昨日の夜は雨がひどく降って、駅までの道がとても混んでいました。", "モデル設定：メモ帳で編集しないでください", "値段は¥100〜¥200です。"],
    "ko": ["안녕하세요", "개발자", "당신은 친절한 도우미입니다.", "다음 질문에 대해 단계별로 생각한 후 답하세요.", "어젯밤에 비가 많이 와서 역까지 가는 길이 몹시 붐볐습니다.",
           "함수는 정수 목록을 돌려주며 호출하는 쪽에서 경계를 확인해야 합니다."],
    "fr": ["Vous êtes un assistant serviable.", "Français", "Répondez étape par étape, s’il vous plaît…", "déjà vu"],
    "de": ["Größe des Wortschatzes", "Bitte nicht von Hand ändern – die Datei wird erzeugt.", "Übergröße"],
    "ru": ["Вы полезный помощник.", "Не редактируйте этот файл вручную: он создан автоматически.", "Привет"],
    "th": ["คุณเป็นผู้ช่วยที่มีประโยชน์"],
    "he": ["אתה עוזר מועיל"],
    "el": ["Είσαι ένας χρήσιμος βοηθός."],
}  # fmt: skip
UNICODE = [
    "utf-8",
    "utf-8-sig",
    "utf-16-le",
    "utf-16-be",
    "utf-32-le",
    "utf-32-be",
    "bom:utf-16-le",
    "bom:utf-16-be",
    "bom:utf-32-le",
]
CJK = {
    "zh": ["gbk", "gb18030"],
    "zht": ["big5", "cp950", "gbk"],
    "ja": ["cp932", "shift_jis", "euc_jp"],
    "ko": ["cp949", "euc_kr"],
}
SINGLE_BYTE = {"fr": ["cp1252", "latin-1", "mac-roman", "cp850"], "de": ["cp1252", "cp437"], "ru": ["cp1251", "koi8-r", "cp866"],
               "th": ["cp874"], "he": ["cp1255"], "el": ["cp1253"]}  # fmt: skip
BOMS = {"utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE, "utf-32-le": codecs.BOM_UTF32_LE}


def config(text: str) -> str:
    return (
        json.dumps({"_comment": text, "hidden_size": 896, "tie_word_embeddings": True}, ensure_ascii=False, indent=2)
        + "\n"
    )


def template(text: str) -> str:
    return (
        "{%- for m in messages %}\n{{- m.role + '\\n' + m.content }}\n{%- endfor %}" + text + "{%- if x %}{% endif %}\n"
    )


def yaml(text: str) -> str:
    return f'# {text}\nmodel:\n  name: qwen\n  system_prompt: "{text}"\n'


def readme(text: str) -> str:
    return f"---\nlicense: apache-2.0\n---\n# Qwen-int4\n\n{text}\n\n```python\nx = 1  # {text[:4]}\n```\n"


DOCUMENTS: dict[str, Callable[[str], str]] = {
    "config.json": config, "chat_template.jinja": template, "recipe.yaml": yaml, "README.md": readme,
}  # fmt: skip


@dataclass(frozen=True)
class Sample:
    name: str
    group: Literal["unicode", "iso-2022", "cjk", "single-byte", "damaged"]
    encoding: str
    data: bytes
    text: str | None

    @property
    def distinct_cjk(self) -> int:
        return len({char for char in self.text or "" if char >= "\u2e80" and char.isalpha()})


def samples(seed: int) -> Iterator[Sample]:
    """Each sentence in each document and encoding; damage and joined sentences are drawn from `seed`."""
    draw = random.Random(seed)
    for language, sentences in SENTENCES.items():
        joined = ["".join(draw.sample(sentences, 2)) for _ in range(2) if len(sentences) > 1]
        for sentence in [*sentences, *joined]:
            name = draw.choice(list(DOCUMENTS))
            text = DOCUMENTS[name](sentence)
            for encoding in UNICODE:
                yield Sample(name, "unicode", encoding, _encode(text, encoding), text)
            if language == "ja" and "¥" not in text:
                yield Sample(name, "iso-2022", "iso2022_jp", text.encode("iso2022_jp"), text)
            for encoding in CJK.get(language, []):
                yield from _legacy(name, "cjk", encoding, text)
            for encoding in SINGLE_BYTE.get(language, []):
                yield from _legacy(name, "single-byte", encoding, text)
            if not sentence.isascii():
                yield from _damaged(name, text.encode("utf-8"), draw)
    yield Sample("config.json", "damaged", "noise", draw.randbytes(300), None)
    yield Sample("README.md", "damaged", "pickle", b"\x80\x02}q\x00(X\x05\x00\x00\x00model" + draw.randbytes(80), None)
    yield Sample(
        "config.json", "damaged", "utf-16", codecs.BOM_UTF16_LE + config("模型").encode("utf-16-le")[:-3], None
    )


def _encode(text: str, encoding: str) -> bytes:
    codec = encoding.removeprefix("bom:")
    return (BOMS[codec] if encoding.startswith("bom:") else b"") + text.encode(codec)


def _legacy(name: str, group: Literal["cjk", "single-byte"], encoding: str, text: str) -> Iterator[Sample]:
    try:
        yield Sample(name, group, encoding, text.encode(encoding), text)
    except UnicodeEncodeError:
        return


def _damaged(name: str, data: bytes, draw: random.Random) -> Iterator[Sample]:
    high = [index for index, byte in enumerate(data) if byte >= 0x80]
    for _ in range(3):
        broken = bytearray(data)
        broken[draw.choice(high)] = draw.randrange(256)
        try:
            broken.decode("utf-8")
        except UnicodeDecodeError:
            yield Sample(name, "damaged", "utf-8", bytes(broken), None)
