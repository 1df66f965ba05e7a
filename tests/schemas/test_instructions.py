"""The signature lines: what they parse to, and that every executor's table has the same instructions."""

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpack_runtime.reference.executor import FUNCTIONS
from qpack_schemas.instructions import CONSTRAINTS, FIXED, INSTRUCTIONS, STATE, TOGETHER, Operand, evaluate


def test_a_line_reads_as_it_is_written():
    signature = INSTRUCTIONS["rms_norm"]
    assert list(signature.operands.values()) == [
        Operand("x", "", ("T", "H"), "input", False),
        Operand("delta", "", ("T", "H"), "input", True),
        Operand("weight", "w", ("H",), "input", False),
        Operand("y", "", ("T", "H"), "output", False),
        Operand("sum", "", ("T", "H"), "output", True),
    ]
    assert signature.attributes == {"eps": float, "unit_offset": bool}
    k = INSTRUCTIONS["rope_kv_write"].operands["k"]
    assert (k.role, k.dims, k.optional, k.is_weight) == ("update", ("P", "G", "D"), False, False)
    assert INSTRUCTIONS["linear_int4"].operands["q"].dims == ("K^128/16", "N^64*2")
    assert INSTRUCTIONS["silu_mul"].attributes == {}


def test_the_reference_executor_takes_exactly_the_operands_and_attributes_of_each_line():
    assert FUNCTIONS.keys() == INSTRUCTIONS.keys()
    for op, signature in INSTRUCTIONS.items():
        parameters = inspect.signature(FUNCTIONS[op]).parameters
        assert set(parameters) == {*signature.operands, *signature.attributes}, op
        optional = {name for name, parameter in parameters.items() if parameter.default is not parameter.empty}
        assert optional == {name for name, operand in signature.operands.items() if operand.optional}, op


@pytest.mark.parametrize("op", INSTRUCTIONS)
def test_every_letter_of_an_expression_and_a_relation_is_bound_by_the_line_itself(op: str):
    """A letter that no operand binds alone would leave its dimension unchecked."""
    signature = INSTRUCTIONS[op]
    required = [operand for operand in signature.operands.values() if not operand.optional]
    bound = {dim for operand in required for dim in operand.dims if len(dim) == 1}
    sizes = dict.fromkeys(bound, 1)
    for operand in signature.operands.values():
        for dim in operand.dims:
            assert len(dim) == 1 or evaluate(dim, sizes) is not None, f"{op}.{operand.name}: {dim}"
    for text, holds in CONSTRAINTS.get(op, ()):
        assert holds({**sizes, **dict.fromkeys(signature.attributes, 1)}) in (True, False), text


def test_state_is_what_some_instruction_updates_and_nothing_else_has_its_names():
    assert {"counts", "slot_token", "slot_position", "k", "v", "ring", "memory"} == STATE
    for signature in INSTRUCTIONS.values():
        for operand in signature.operands.values():
            assert not (operand.name in STATE and (operand.is_weight or operand.role == "output"))


def test_every_integer_that_a_kernel_indexes_by_is_one_known_buffer():
    for signature in INSTRUCTIONS.values():
        for operand in signature.operands.values():
            if operand.kind in {"i", "h"}:
                assert operand.name in FIXED, f"{signature.op}.{operand.name}"
    assert FIXED["rows"] == "last"
    assert FIXED["grammar"] == "sampling.grammar"
    assert FIXED["slots"] == "slots"
    assert not {"x", "y", "k", "weight"} & set(FIXED)


def test_operands_that_come_together_are_optional_ones_of_their_line():
    for op, names in TOGETHER.items():
        assert all(INSTRUCTIONS[op].operands[name].optional for name in names)


@given(k=st.integers(1, 10**6), n=st.integers(1, 10**6))
def test_expressions_are_evaluated_left_to_right_with_rounding_up(k: int, n: int):
    sizes = {"K": k, "N": n}
    whole = -(-k // 128) * 128
    assert evaluate("K^128/16", sizes) == whole // 16
    assert evaluate("K^128/128", sizes) == whole // 128
    assert evaluate("N^64*2", sizes) == -(-n // 64) * 64 * 2
    assert evaluate("2*N", sizes) == 2 * n
    assert evaluate("N*K", sizes) == n * k
    assert evaluate("512", {}) == 512
    assert evaluate("V/32", sizes) is None
