"""Linear algebra as correct kernels compute it: the exact result of operands that are a little off.

A factorisation is as accurate as its operand's condition allows, whatever its order of sums: its
result is that of a matrix that differs by some roundings of the matrix's own size. So each
simulated kernel is given such a matrix, and no condition number is worked out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

from .arithmetic import FUNCTIONS, U
from .batched import batched
from .operations import is_inexact
from .simulation import Operands, Simulation

ROUNDINGS = 2.0
"""Of a matrix, as a whole, relative to its norm and to the square root of its terms. LAPACK in
float32 leaves 0.1 to 1 of that in factors and solutions, 2.5 in eigenvalues."""

_STABLE = {
    "_linalg_det", "_linalg_slogdet", "_linalg_solve_ex", "_linalg_svd", "_linalg_eigh",
    "_linalg_eigvals", "linalg_inv_ex", "linalg_cholesky_ex", "linalg_qr", "linalg_eig",
    "linalg_lu", "linalg_lu_factor_ex", "linalg_lu_solve", "linalg_ldl_factor_ex",
    "linalg_ldl_solve", "linalg_matrix_exp", "linalg_pinv", "linalg_lstsq",
    "linalg_solve_triangular", "triangular_solve", "cholesky_solve", "cholesky_inverse",
    "geqrf", "linalg_householder_product",
}  # fmt: skip


def is_stable(name: str) -> bool:
    """Whether an operation is backward stable, and nothing is known but that."""
    return name in _STABLE


def solved(func: OpOverload, operands: Operands, simulation: Simulation) -> tuple[Any, ...]:
    """Stacks of all results, as a tuple."""
    stacks: set[int] = set()

    def each(value: torch.Tensor) -> torch.Tensor:
        if not is_inexact(value):
            return value
        stack = _off(value, operands.has_rows(value), simulation, matrix=not stacks)
        stacks.add(id(stack))
        return stack

    args, kwargs = operands.map(each)
    results = batched(func, args, kwargs, lambda t: id(t) in stacks, simulation.rows)
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)


def _off(t: torch.Tensor, stacked: bool, simulation: Simulation, *, matrix: bool) -> torch.Tensor:
    """The first operand, by its norm; another one, a right-hand side, by each of its elements."""
    one = t[0] if stacked else t
    if matrix and one.ndim >= 2:
        size = torch.linalg.vector_norm(one, dim=(-2, -1), keepdim=True)
        scale = (ROUNDINGS * U / max(one.shape[-2:]) ** 0.5 * size).expand(one.shape)
    else:
        scale = FUNCTIONS * one.abs()
    whole = t.clone() if stacked else simulation.spread_out(t, stacked=False)
    return simulation.perturb(whole, scale, stacked=True)
