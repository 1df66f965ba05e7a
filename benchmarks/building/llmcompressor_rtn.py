"""llm-compressor rounding to nearest, W4A16 in groups of 128: `llmcompressor_rtn.py CHECKPOINT OUTPUT THREADS`.

Its path without data and without a model's code, which is its fastest. Head and embedding stay bfloat16.
"""

# pyright: reportMissingImports=false

import sys


def main(checkpoint: str, output: str, threads: str) -> None:
    import torch
    from llmcompressor import model_free_ptq

    torch.set_num_threads(int(threads))
    ignored = ["lm_head", "re:.*embed_tokens", "re:.*norm"]
    model_free_ptq(checkpoint, output, scheme="W4A16", ignore=ignored, max_workers=int(threads), device="cpu")


if __name__ == "__main__":
    main(*sys.argv[1:])
