"""How quantized checkpoints store a weight, one file per format: GPTQ, AWQ, compressed-tensors and FP8."""
