"""Convolutions, pools, upsampling and group norm as torch computes them: what
tests/kernels/torch_windows.inc says, which tests/kernels/windows_test.cpp holds every device to.

`python tests/python/test_op_windows.py` prints that file.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from torch.nn import functional

TABLE = Path(__file__).parents[1] / "kernels" / "torch_windows.inc"
NONE, ONE = [0, 0], [1, 1]
# Op, shapes of x and of the weight (pools: kernel; upsampling: size of out), stride, padding,
# dilation, output padding, groups (avg_pool2d: count_include_pad).
CASES = [
    ["conv1d", [2, 4, 9], [6, 2, 3], [1, 2], [0, 1], [1, 2], NONE, 2],
    ["conv1d", [1, 3, 4], [2, 3, 4], ONE, NONE, ONE, NONE, 1],
    ["conv2d", [2, 3, 5, 6], [2, 3, 3, 2], ONE, NONE, ONE, NONE, 1],
    ["conv2d", [1, 4, 7, 5], [4, 2, 3, 3], [2, 1], [1, 2], [1, 2], NONE, 2],
    ["conv2d", [1, 3, 6, 7], [6, 1, 2, 4], [3, 2], [0, 3], [2, 1], NONE, 3],
    ["conv2d", [2, 2, 1, 1], [3, 2, 3, 3], ONE, ONE, ONE, NONE, 1],
    ["conv_transpose1d", [2, 4, 5], [4, 3, 4], [1, 3], [0, 2], [1, 1], [0, 2], 2],
    ["conv_transpose1d", [1, 2, 3], [2, 2, 3], ONE, [0, 1], [1, 2], [0, 1], 1],
    ["conv_transpose2d", [2, 2, 3, 4], [2, 3, 2, 3], ONE, NONE, ONE, NONE, 1],
    ["conv_transpose2d", [1, 4, 3, 2], [4, 2, 3, 2], [2, 3], [1, 0], [2, 1], [1, 2], 2],
    ["max_pool2d", [2, 2, 5, 7], [3, 2], [2, 1], [1, 1], ONE, NONE, 0],
    ["max_pool2d", [1, 1, 4, 4], [2, 2], [2, 2], NONE, ONE, NONE, 0],
    ["avg_pool2d", [2, 2, 5, 7], [3, 2], [2, 3], [1, 1], ONE, NONE, 0],
    ["avg_pool2d", [2, 2, 5, 7], [3, 2], [2, 3], [1, 1], ONE, NONE, 1],
    ["upsample_nearest2d", [1, 2, 3, 2], [6, 6], ONE, NONE, ONE, NONE, 1],
    ["upsample_nearest2d", [1, 1, 5, 7], [7, 3], ONE, NONE, ONE, NONE, 1],
    ["upsample_nearest2d", [1, 1, 3, 41], [4, 47], ONE, NONE, ONE, NONE, 1],
    ["group_norm", [2, 6, 5], [], ONE, NONE, ONE, NONE, 3],
    ["group_norm", [2, 4, 2, 3], [], ONE, NONE, ONE, NONE, 1],
    ["group_norm", [1, 4, 2, 2, 3], [], ONE, NONE, ONE, NONE, 2],
    ["group_norm", [3, 8], [], ONE, NONE, ONE, NONE, 2],
]


def whole(shape: list[int], step: int, count: int) -> torch.Tensor:
    """Whole numbers around 0, different for neighbours: sums of them are exact in every dtype."""
    at = torch.arange(math.prod(shape), dtype=torch.float64)
    return ((at * step) % count - count // 2).reshape(shape)


def of_torch(case: list) -> torch.Tensor:
    op, shape, weight_shape, stride, padding, dilation, output_padding, groups = case
    x = whole(shape, 7, 11)
    if op == "upsample_nearest2d":
        return functional.interpolate(x, size=weight_shape, mode="nearest")
    if op == "max_pool2d":
        return functional.max_pool2d(x, weight_shape, stride, padding)
    if op == "avg_pool2d":
        return functional.avg_pool2d(
            x, weight_shape, stride, padding, count_include_pad=bool(groups)
        )
    if op == "group_norm":
        channels = shape[1:2]
        return functional.group_norm(x, groups, whole(channels, 5, 7), whole(channels, 1, 3), 1e-5)
    weight = whole(weight_shape, 5, 7)
    one_axis, transposed = op.endswith("1d"), "transpose" in op
    axes = slice(1 if one_axis else 0, 2)
    bias = whole([weight_shape[1] * groups if transposed else weight_shape[0]], 1, 3)
    more = {"output_padding": output_padding[axes]} if transposed else {}
    function = getattr(functional, op)
    return function(
        x, weight, bias, stride=stride[axes], padding=padding[axes], dilation=dilation[axes],
        groups=groups, **more,
    )  # fmt: skip


def test_the_table_is_what_torch_computes() -> None:
    lines = [line for line in TABLE.read_text().splitlines() if line.startswith("{")]
    rows = [json.loads(line.rstrip(",").translate(str.maketrans("{}", "[]"))) for line in lines]
    assert [row[:-2] for row in rows] == CASES
    for *case, shape, values in rows:
        expected = of_torch(case)
        assert list(expected.shape) == shape
        found = torch.tensor(values, dtype=torch.float64).reshape(shape)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12, msg=str(case))


if __name__ == "__main__":
    print("// Cases of tests/python/test_op_windows.py, which wrote it, and what torch gives.")
    for case in CASES:
        found = of_torch(case)
        values = [int(v) if v == int(v) else v for v in found.flatten().tolist()]
        row = json.dumps([*case, list(found.shape), values])
        print(row.translate(str.maketrans("[]", "{}")) + ",")
