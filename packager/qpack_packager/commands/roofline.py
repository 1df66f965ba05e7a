"""How fast a decode step could be: the bytes it must move over the memory bandwidth of a device.

The roofline of S. Williams, A. Waterman and D. Patterson (CACM 52(4), 2009) far left of the ridge, where decoding is.
An upper bound: activations, logits and arithmetic are taken to cost nothing.
"""

from qpack_packager.devices import Device
from qpack_schemas.traffic import Traffic

# Between two kernels of a graph nothing is loaded: 1.3 us on an H100, as measured by Spector et al., "Look Ma, No
# Bubbles!" (Hazy Research, 2025).
LAUNCH_SECONDS = 1.3e-6


def step_seconds(step: Traffic, device: Device, launches: int = 0) -> float:
    """What the bandwidth allows at best; with `launches` kernels in a step, and their boundaries."""
    return step.total / device.bytes_per_second + launches * LAUNCH_SECONDS


def tokens_per_second(step: Traffic, device: Device, launches: int = 0) -> float:
    """Of all sequences of the step together."""
    return step.rows / step_seconds(step, device, launches)
