"""What a build must know about the tokenizer: how many ids are real, which ones end a text, the chat template."""

from collections.abc import Iterable
from dataclasses import dataclass

from qpack_packager.checkpoint.json_object import JsonObject, shown
from qpack_packager.checkpoint.model_text import ModelText
from qpack_schemas.errors import InputError, UnsupportedError
from qpack_schemas.strict_json import JsonValue

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
GENERATION_CONFIG = "generation_config.json"
CHAT_TEMPLATE = "chat_template.jinja"


@dataclass(frozen=True)
class TokenizerFacts:
    """Ids from `real_vocab_size` up to the model's vocab_size are padding, which no text ever encodes to."""

    real_vocab_size: int
    eos_token_ids: tuple[int, ...]  # ascending, each once
    files: tuple[str, ...]  # read for this, relative to the directory, sorted


def read_tokenizer(text: ModelText, config_document: JsonValue, vocab_size: int) -> TokenizerFacts:
    """`vocab_size` is the model's, padding included.

    Raises InputError for an absent or malformed file and for ids that do not fit together, UnsupportedError for a
    tokenizer that is not byte-level.
    """
    tokenizer = _load(text)
    _require_byte_level(tokenizer)
    ids = _token_ids(tokenizer)
    last, last_id = max(ids.items(), key=lambda item: item[1])
    if last_id >= vocab_size:
        raise InputError(
            f"token {last!r} has id {last_id}, the model's vocab_size is {vocab_size}",
            where=tokenizer.path,
            remedy="take tokenizer and weights from the same checkpoint",
        )

    config = JsonObject(config_document, str(text.directory / "config.json"))
    others = {name: text.object(name) for name in (GENERATION_CONFIG, TOKENIZER_CONFIG) if name in text}
    sources = (config, config.object("text_config"), others.get(GENERATION_CONFIG))
    eos = {token_id for source in sources if source for token_id in _eos_ids(source, last_id)}
    if tokenizer_config := others.get(TOKENIZER_CONFIG):
        eos.update(_eos_token(tokenizer_config, ids))
    return TokenizerFacts(last_id + 1, tuple(sorted(eos)), tuple(sorted([TOKENIZER, *others])))


def read_chat_template(text: ModelText) -> tuple[str | None, list[str]]:
    """(the template or None, notes). As in transformers, chat_template.jinja wins over tokenizer_config.json.

    Raises InputError for a template of a wrong type or a list of templates without a default.
    """
    inside = None
    if TOKENIZER_CONFIG in text:
        inside = _template_inside(text.object(TOKENIZER_CONFIG))
    if CHAT_TEMPLATE not in text:
        return inside, []
    template = text.text(CHAT_TEMPLATE)
    if inside is None or _as_jinja_reads(inside) == _as_jinja_reads(template):
        return template, []
    return template, [f"{CHAT_TEMPLATE} differs from the chat_template in {TOKENIZER_CONFIG}: the former is used"]


def _load(text: ModelText) -> JsonObject:
    if TOKENIZER not in text:
        raise InputError(
            "is absent",
            where=str(text.directory / TOKENIZER),
            remedy="save a fast tokenizer: transformers.AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)",
        )
    return text.object(TOKENIZER)


def _require_byte_level(tokenizer: JsonObject) -> None:
    decoder = tokenizer.object("decoder")
    parts = decoder.objects("decoders") if decoder and decoder.string("type") == "Sequence" else [decoder]
    if [part and part.string("type") for part in parts] != ["ByteLevel"]:
        raise UnsupportedError(
            f"the decoder is {shown(decoder and decoder.value)}, only ByteLevel is supported",
            where=tokenizer.at("decoder"),
            remedy="take the tokenizer.json that the model was published with",
        )


def _token_ids(tokenizer: JsonObject) -> dict[str, int]:
    model = tokenizer.object("model")
    vocabulary = model.object("vocab") if model else None
    if vocabulary is None:
        raise InputError("holds no vocabulary", where=tokenizer.at("model", "vocab"))
    ids = dict(vocabulary.value)
    for added in tokenizer.objects("added_tokens"):
        ids[added.required_string("content")] = added.value.get("id")
    for token, token_id in ids.items():
        if type(token_id) is not int or token_id < 0:
            raise InputError(f"token {token!r} has the id {shown(token_id)}", where=tokenizer.path)
    return ids


def _eos_ids(source: JsonObject, last_id: int) -> tuple[int, ...]:
    for token_id in (ids := source.ids("eos_token_id")):
        if token_id > last_id:
            raise InputError(
                f"{token_id} is beyond the tokenizer's vocabulary of {last_id + 1} ids",
                where=source.at("eos_token_id"),
                remedy="no text would ever end there: correct the id or the tokenizer",
            )
    return ids


def _eos_token(tokenizer_config: JsonObject, ids: dict[str, int]) -> Iterable[int]:
    entry = tokenizer_config.value.get("eos_token")
    if isinstance(entry, dict):
        token = JsonObject(entry, tokenizer_config.path, tokenizer_config.pointer_to("eos_token")).required_string(
            "content"
        )
    else:
        token = tokenizer_config.string("eos_token")
    if token is None:
        return ()
    if token not in ids:
        raise InputError(
            f"{token!r} is no token of {TOKENIZER}",
            where=tokenizer_config.at("eos_token"),
            remedy="take both files from the same checkpoint",
        )
    return (ids[token],)


def _template_inside(tokenizer_config: JsonObject) -> str | None:
    if not isinstance(tokenizer_config.value.get("chat_template"), list):
        return tokenizer_config.string("chat_template")
    templates = {
        entry.required_string("name"): entry.required_string("template")
        for entry in tokenizer_config.objects("chat_template")
    }
    if templates and "default" not in templates:
        raise InputError(
            f"none of the templates is named 'default': {', '.join(sorted(templates))}",
            where=tokenizer_config.at("chat_template"),
            remedy=f"put the one to be used into {CHAT_TEMPLATE}",
        )
    return templates.get("default")


def _as_jinja_reads(template: str) -> str:
    return template.replace("\r\n", "\n").removesuffix("\n")
