"""Examples in the help of each command, as they are typed: its most usual uses. A test runs every one."""

EXAMPLES = {
    "serve": (
        "qpack-runtime serve bundle",
        "qpack-runtime serve bundle --device cuda --host 0.0.0.0",
        "qpack-runtime serve bundle --host 0.0.0.0 --api-key-file keys.txt",
    ),
    "generate": (
        'qpack-runtime generate bundle --prompt "And the LORD said unto"',
        "qpack-runtime generate bundle --messages chat.json --temperature 0.7",
        "qpack-runtime generate bundle --messages - --format json < chat.json",
    ),
    "doctor": (
        "qpack-runtime doctor gpu-bundle",
        "qpack-runtime doctor gpu-bundle --format json",
    ),
    "tune": (
        "qpack-runtime tune kit -o tuning.json",
        "qpack-runtime tune kit -o tuning.json --format json",
    ),
    "bench": (
        "qpack-runtime bench bundle",
        "qpack-runtime bench bundle --batch 1 --format json > here.json",
        "qpack-runtime bench bundle --batch 1 --compare there.json",
    ),
    "logits": (
        "qpack-runtime logits bundle --windows windows.npy > logits.bin",
        "qpack-runtime logits bundle --windows windows.npy --mode exact > exact.bin",
    ),
}
