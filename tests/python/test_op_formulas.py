"""The formulas of `harness list --ops` against torch: what every device reads is written once."""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

NUMBER, SHIFT = 0.3125, 55.5
# That formulas call by torch's name.
FUNCTIONS = ["abs", "floor", "round", "exp", "expm1", "log", "log1p", "sin", "cos", "erf"]
FUNCTIONS += ["tanh", "pow"]
# Where torch has no function of that name with these operands in that order.
OTHERS: dict[str, Callable[..., torch.Tensor]] = {
    "affine": lambda x: x * NUMBER + SHIFT,
    "multiply_add": lambda a, b, c: a * b + c,
    "where": lambda condition, a, b: torch.where(condition != 0, a, b),
    "add_scalar": lambda x: x + NUMBER,
    "elu": lambda x: functional.elu(x, NUMBER),
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "leaky_relu": lambda x: functional.leaky_relu(x, NUMBER),
    "silu": functional.silu,
    "softplus": functional.softplus,
    "softcap": lambda x: NUMBER * torch.tanh(x / NUMBER),
    "scaled_add": lambda x, residual: residual + NUMBER * x,
    "relu_backward": lambda x, d_out: torch.where(x <= 0, 0.0, d_out),
}


# Where torch has no function of that name.
REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "min": torch.amin,
    "max": torch.amax,
    "norm": torch.linalg.vector_norm,
    "log_sum_exp": lambda x: torch.logsumexp(x, 0),
}


@pytest.fixture
def formulas(harness: Path) -> dict[str, tuple[list[str], str]]:
    """By op: its inputs' names and what it computes."""
    done = subprocess.run([harness, "list", "--ops"], capture_output=True, text=True, check=True)
    out = {}
    for line in done.stdout.splitlines():
        name, operands, *formula = [part.strip() for part in line.split("  ") if part.strip()]
        # A derivative is written as one: it is read from the formula that it names.
        if formula and ";" not in formula[0] and "(d " not in formula[0]:
            out[name] = (operands.split(" = ")[1].split(", "), formula[0])
    return out


def test_a_formula_is_what_torch_computes(formulas: dict[str, tuple[list[str], str]]) -> None:
    assert {"add", "mul", "div", "rsqrt", "minimum", "pow", *OTHERS} <= formulas.keys()
    special = torch.tensor([0.0, 1.0, -1.0, torch.inf, -torch.inf, torch.nan], dtype=torch.float64)
    drawn = torch.randn(100, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    values = torch.cat([special, drawn])
    names: dict[str, Any] = {"R": lambda x: x, "number": NUMBER, "shift": SHIFT}
    names |= {"sqrt": torch.sqrt}
    names |= {name: getattr(torch, name) for name in FUNCTIONS}
    names |= {
        "where": lambda chosen, *of: torch.where(chosen, *map(torch.as_tensor, of)).double(),
        "fma": lambda a, b, c: torch.addcmul(torch.as_tensor(c).double(), a, torch.as_tensor(b)),
        "silu": lambda x: x / (1 + torch.exp(-x)),
        "gelu": lambda x: x / 2 * torch.erfc(-x / 2**0.5),
        "gelu_tanh": lambda x: x / (1 + torch.exp(-(x + 0.044715 * x**3) * (8 / torch.pi) ** 0.5)),
    }
    for name, (inputs, formula) in formulas.items():
        inputs = [name.split(":")[0] for name in inputs]
        grid = [g.flatten() for g in torch.meshgrid([values] * len(inputs), indexing="ij")]
        found = eval(formula, names | dict(zip(inputs, grid, strict=True)))
        expected = OTHERS.get(name) or getattr(torch, name)
        torch.testing.assert_close(found, expected(*grid).double(), equal_nan=True, msg=name)


def test_a_reduction_is_what_torch_computes(harness: Path) -> None:
    done = subprocess.run([harness, "list", "--ops"], capture_output=True, text=True, check=True)
    rows = [re.split(r"\s{2,}", line.strip()) for line in done.stdout.splitlines()]
    texts = {row[0]: row[2] for row in rows if len(row) > 2 and ";" in row[2]}
    assert {"sum", "mean", "prod", "argmin", "argmax", "any", "all", *REDUCTIONS} == texts.keys()

    def where(chosen: bool, a: float, b: float) -> float:
        return a if chosen else b

    def exp(x: float) -> float:
        return float(torch.tensor(x, dtype=torch.float64).exp())

    def log(x: float) -> float:
        return float(torch.tensor(x, dtype=torch.float64).log())

    names: dict[str, Any] = {"where": where, "exp": exp, "log": log, "inf": math.inf, "abs": abs}
    names |= {"R": lambda x: x, "sqrt": math.sqrt, "fma": lambda a, b, c: a * b + c}

    def state(text: str, values: dict[str, Any]) -> list[Any]:
        found = eval(text, names | values)
        return list(found) if isinstance(found, tuple) else [found, 0]

    special = [math.nan, math.inf, -math.inf, 0.0, -0.0, 2.0]
    generator = torch.Generator().manual_seed(1)
    lists = [[a, b, c] for a in special for b in special for c in special]
    lists += [[1.0, a, 1.0, a] for a in special] + [[a] for a in special]
    lists += [[5e-324, a] for a in special] + [[a, 1.0, 5e-324] for a in special]
    lists += [torch.randn(n, generator=generator).double().tolist() for n in (1, 2, 7, 31, 64)]
    for name, text in texts.items():
        start, step, combine, finish = text.split("; ")
        for values in lists:
            parts = []  # two, which are combined
            for first, last in ((0, len(values) // 2), (len(values) // 2, len(values))):
                s, t = state(start, {})
                for i in range(first, last):
                    s, t = state(step, {"s": s, "t": t, "x": values[i], "i": i})
                parts.append((s, t))
            (a, ta), (b, tb) = parts
            s, t = state(combine, {"a": a, "ta": ta, "b": b, "tb": tb})
            found = eval(finish, names | {"s": s, "t": t, "count": len(values)})
            expected = (REDUCTIONS.get(name) or getattr(torch, name))(
                torch.tensor(values, dtype=torch.float64)
            )
            torch.testing.assert_close(
                torch.tensor(found).double(), expected.double(), equal_nan=True,
                msg=f"{name} of {values}: {found}, torch {expected}",
            )  # fmt: skip


def header_operands() -> dict[str, str]:
    """By op, what the table in kernels/plugin.h says a call's tensors are."""
    header = (Path(__file__).parents[2] / "kernels" / "plugin.h").read_text()
    table = header.split("then the parameters that count:\n *\n")[1].split(" */")[0]
    rows: list[list[str]] = []
    for line in table.splitlines():
        names, operands = line[5:23].strip(), line[23:67].strip()
        if len(line.split()) == 2 and line[5] != " ":  # a name alone, however long
            names, operands = line[5:].strip(), ""
        if names and not (rows and rows[-1][0].endswith(",")):
            rows.append([names, operands])
        else:
            rows[-1] = [f"{rows[-1][0]} {names}".strip(), f"{rows[-1][1]} {operands}".strip()]
    return {name: operands for names, operands in rows for name in names.split(", ")}


def test_the_header_of_plugins_has_the_operands_of_every_op(harness: Path) -> None:
    done = subprocess.run([harness, "list", "--ops"], capture_output=True, text=True, check=True)
    rows = [re.split(r"\s{2,}", line.strip()) for line in done.stdout.splitlines()]
    assert header_operands() == {row[0]: row[1].replace(" = ", ", ") for row in rows}
