"""llama.cpp's convert_hf_to_gguf.py on a checkpoint whose tokenizer it doesn't know: `llama_convert.py SOURCE ARG...`.

SOURCE is the folder of the script. It knows published tokenizers by a digest of what they make of a text, and refuses
others; the stand-in of the benchmark's checkpoints is declared to be Qwen's. Everything else is done as it does it.
"""

# pyright: reportMissingImports=false

import runpy
import sys
from pathlib import Path


def main(source: str, *arguments: str) -> None:
    script = Path(source) / "convert_hf_to_gguf.py"
    sys.path[:0] = [source, str(Path(source) / "gguf-py")]
    from conversion.base import TextModel

    TextModel.get_vocab_base_pre = lambda self, tokenizer: "qwen2"
    sys.argv = [str(script), *arguments]
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
