"""Which layer an instruction belongs to, and what a work buffer is for, as their names tell."""

import re

from qpack_schemas.program import Instruction

_LAYER = re.compile(r"(?:layers\.)?([0-9]{1,6})\.")
# The colour and the name of what a buffer is for, by the part of its name behind the layer.
ROLES: dict[str, tuple[int, str]] = {
    "input": (1, "residual stream and norms"),
    "post": (1, "residual stream and norms"),
    "h": (1, "residual stream and norms"),
    "final": (1, "residual stream and norms"),
    "attn": (3, "attention"),
    "delta": (4, "gated delta rule"),
    "mlp": (2, "MLP"),
}
OTHER = (7, "tokens, slots, positions")


def layer_of(instruction: Instruction) -> int | None:
    """The number of its layer; None before the first one and behind the last."""
    names = [*instruction.outputs.values(), *instruction.updates.values()]
    return next((number for name in names if (number := layer_in(name)) is not None), None)


def layer_in(name: str) -> int | None:
    """The layer that the name of a buffer or a module begins with."""
    found = _LAYER.match(name)
    return int(found[1]) if found else None


def within_layer(buffer: str) -> str:
    """The name of a work buffer without its layer: `mlp.act` of `3.mlp.act`."""
    return _LAYER.sub("", buffer, count=1) if _LAYER.match(buffer) else buffer


def role_of(buffer: str) -> tuple[int, str]:
    """Colour and name of what the work buffer of this name is for."""
    return ROLES.get(within_layer(buffer).partition(".")[0], OTHER)
