"""The CUDA executor: launch tables of compiled kernels as one graph per bucket, through plain calls of the driver.

Needs the NVIDIA driver and numpy, nothing else: no CUDA toolkit, no compiler, no Python package of NVIDIA's.
"""
