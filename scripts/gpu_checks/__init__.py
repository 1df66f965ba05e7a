"""The pieces of scripts/gpu_check.py. They import the runtime and what it brings, nothing of the build side."""
