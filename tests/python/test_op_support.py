"""`harness support --ops`: the catalogue, and how exact it is."""

from __future__ import annotations

import re

from harness_runs import command


def test_every_op_is_listed_and_no_formula_is_off_by_more_than_it_may_be() -> None:
    done = command("support", "--ops", "--device", "cpu")
    assert done.returncode == 0, done.stdout
    listed = [line.split()[0] for line in command("list", "--ops").stdout.splitlines()]
    head, *rows = done.stdout.splitlines()
    assert head.split() == ["op", "cpu", "operands"]
    assert [row.split()[0] for row in rows] == listed
    assert all("f32 f16 bf16" in row for row in rows)
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
