"""`open`: from a directory to something that decodes. Verifies first, allocates second, binds last."""

import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tokenizers import Tokenizer

from qpack_runtime.detokenizer import TokenBytes
from qpack_runtime.engine import Engine
from qpack_runtime.probes import check_probes
from qpack_runtime.reference.executor import ReferenceExecutor
from qpack_schemas.bundle import Bundle, open_bundle
from qpack_schemas.bundle_rules import TOKENIZER_PATH
from qpack_schemas.errors import Finding, IntegrityError


@dataclass(frozen=True)
class Booted:
    bundle: Bundle
    executor: ReferenceExecutor
    engine: Engine
    tokenizer: Tokenizer
    token_bytes: TokenBytes
    seconds: dict[str, float]  # per phase


def boot(path: Path) -> Booted:
    """Boots the bundle at `path` on the reference executor. Raises BundleError if it must not be opened."""
    marks = [("", time.perf_counter())]
    bundle = open_bundle(path)
    marks.append(("verify", time.perf_counter()))
    executor = ReferenceExecutor(bundle)
    engine = Engine(executor, bundle.manifest)
    marks.append(("bind", time.perf_counter()))
    try:
        tokenizer = Tokenizer.from_str((path / TOKENIZER_PATH).read_text(encoding="utf-8"))
    except Exception as error:  # the library raises bare Exception
        finding = Finding(TOKENIZER_PATH, f"the tokenizers library does not read it: {error}")
        raise IntegrityError("the tokenizer can't be loaded:", [finding], where=str(path)) from None
    check_probes(path, bundle.manifest, tokenizer)
    token_bytes = TokenBytes(tokenizer)
    marks.append(("tokenizer", time.perf_counter()))
    seconds = {name: end - begin for (_, begin), (name, end) in pairwise(marks)}
    return Booted(bundle, executor, engine, tokenizer, token_bytes, seconds)
