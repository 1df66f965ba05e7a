"""Runs programs on the host's processor: C++ kernels behind a C ABI, one call per step."""
