"""`harness support --ops`: the catalogue, and how exact it is."""

from __future__ import annotations

import re

from harness_runs import command

FLOATS = ["f32", "f16", "bf16"]
WHOLE = ["i64", "i32", "u32", "u8"]


def test_every_op_is_listed_and_no_formula_is_off_by_more_than_it_may_be() -> None:
    done = command("support", "--ops", "--device", "cpu")
    assert done.returncode == 0, done.stdout
    listed = [line.split()[0] for line in command("list", "--ops").stdout.splitlines()]
    head, *rows = done.stdout.splitlines()
    assert head.split() == ["op", "cpu", "operands"]
    assert [row.split()[0] for row in rows] == listed
    dtypes = {
        row.split()[0]: re.findall(r" (bool|bf16|f8_e\dm\d|[fiu]\d+)(?= )", row) for row in rows
    }
    assert all(found[:3] == FLOATS for found in dtypes.values())
    assert dtypes["exp"] == dtypes["norm"] == [*FLOATS, "f64"]
    assert dtypes["add"] == dtypes["sum"] == [*FLOATS, "f64", *WHOLE, "bool"]
    assert dtypes["sub"] == dtypes["argmax"] == dtypes["top_k"] == [*FLOATS, "f64", *WHOLE]
    assert dtypes["gemm"] == [*FLOATS, "f64", "f8_e4m3", "f8_e5m2", "i8", "u8"]
    assert len(dtypes["roll"]) == 12
    assert dtypes["softmax"] == FLOATS
    errors = {
        row.split()[0]: tuple(map(float, found.groups()))
        for row in rows
        if (found := re.search(r"([\d.]+) of ([\d.]+) ulp ", row))
    }
    assert len(errors) >= 33
    assert all(found <= allowed + 0.01 for found, allowed in errors.values())
    assert {errors[op][1] for op in ("exp", "log", "sin", "tanh", "rsqrt")} == {1}
    assert errors["pow"][1] == errors["gelu"][1] == 4
    assert errors["exp"][0] > 0.4  # it is measured
    assert errors["neg"][0] == 0
