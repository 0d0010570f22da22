"""Forty problems in KernelBench's form: rows of a table, as text of a small size or of its sizes.

usage: kernelbench_problems.py [--full] [--device cuda:0] [--wrong] [NAME...]

Judges a right candidate of each, or a wrong one, whose result was rounded to 16 bits once; prints
status and seconds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

Sizes = dict[str, int]


@dataclass(frozen=True)
class Row:
    """`made` are statements of the constructor, `forward` the result for x, y, z; `inputs` their
    shapes, or expressions with a call. Letters are sizes: the small ones, then the full ones."""

    name: str
    made: str
    forward: str
    inputs: str
    small: str
    full: str


def _rows(*lines: str) -> list[Row]:
    return [Row(*(part.strip() for part in line.split("|"))) for line in lines]


IMAGE = "b=2 c=6 o=4 d=9 | b=64 c=64 o=128 d=128"
VOLUME = "b=2 c=4 o=6 d=6 | b=16 c=32 o=64 d=32"
ROWS = "b=5 c=48 o=32 | b=1024 c=8192 o=8192"
TABLE = _rows(
    "square_product|pass|x @ y|n n; n n|n=24|n=4096",
    "batched_product|pass|torch.bmm(x, y)|b m k; b k n|b=3 m=5 k=24 n=7|b=128 m=512 k=1024 n=2048",
    "tall_product|pass|x @ y|m k; k m|m=40 k=6|m=16384 k=32",
    "transposed_product|pass|x.T @ y.T|k m; n k|m=7 k=40 n=9|m=2048 k=8192 n=4096",
    "triangular_product|pass|torch.tril(x @ y)|n n; n n|n=20|n=4096",
    "vector_product|pass|x @ y|m k; k 1|m=6 k=300|m=2048 k=1048576",
    "softmax|pass|torch.softmax(x, 1)|b c|b=4 c=70|b=4096 c=65536",
    "log_softmax|pass|F.log_softmax(x, 1)|b c|b=4 c=70|b=4096 c=65536",
    "softplus|pass|F.softplus(x)|b c|b=4 c=70|b=4096 c=65536",
    "exact_gelu|pass|F.gelu(x)|b c|b=4 c=70|b=4096 c=65536",
    "selu|pass|torch.selu(x)|b c|b=4 c=70|b=4096 c=65536",
    "layer_norm|self.norm = nn.LayerNorm((c, d, d))|self.norm(x)|b c d d"
    "|b=2 c=4 d=5|b=16 c=64 d=256",
    f"group_norm|self.norm = nn.GroupNorm(2, c)|self.norm(x)|b c d d|{IMAGE}",
    f"instance_norm|self.norm = nn.InstanceNorm2d(c)|self.norm(x)|b c d d|{IMAGE}",
    f"batch_norm|self.norm = nn.BatchNorm2d(c)|self.norm(x)|b c d d|{IMAGE}",
    f"rms_norm|pass|x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-5)|b c d d|{IMAGE}",
    f"frobenius_norm|pass|x / x.norm()|b c d d|{IMAGE}",
    f"max_pool|self.pool = nn.MaxPool2d(3, 2, 1)|self.pool(x)|b c d d|{IMAGE}",
    f"average_pool_3d|self.pool = nn.AvgPool3d(3, 2, 1)|self.pool(x)|b c d d d|{VOLUME}",
    "running_sum|pass|torch.cumsum(x, 1)|b c|b=4 c=70|b=4096 c=32768",
    "running_product|pass|torch.cumprod(x, 1)|b c|b=4 c=30|b=4096 c=32768",
    "minimum_place|pass|torch.argmin(x, 1)|b c|b=4 c=70|b=4096 c=65536",
    "row_means|pass|x.mean(1), x.amax(1)|b c d|b=3 c=20 d=9|b=128 c=4096 d=256",
    "cross_entropy|pass|F.cross_entropy(x, y)|b c; torch.randint(0, c, (b,))"
    "|b=9 c=12|b=4096 c=4096",
    "cosine_loss|pass|(1 - F.cosine_similarity(x, y, 1)).mean()|b c; b c|b=5 c=40|b=4096 c=4096",
    "attention|pass|F.scaled_dot_product_attention(x, y, z)|b h s d; b h s d; b h s d"
    "|b=2 h=2 s=12 d=8|b=32 h=32 s=512 d=64",
    "conv_1d|self.conv = nn.Conv1d(c, o, 3, stride=2, dilation=2)|self.conv(x)|b c d"
    "|b=2 c=4 o=6 d=20|b=64 c=64 o=128 d=65536",
    f"conv_2d|self.conv = nn.Conv2d(c, o, 3, padding=1)|self.conv(x)|b c d d|{IMAGE}",
    f"depthwise_conv|self.conv = nn.Conv2d(c, c, 3, groups=c)|self.conv(x)|b c d d|{IMAGE}",
    "conv_2d_bias_relu"
    "|self.conv = nn.Conv2d(c, o, 3); self.bias = nn.Parameter(torch.randn(o, 1, 1))"
    f"|torch.relu(self.conv(x)) + self.bias|b c d d|{IMAGE}",
    f"conv_2d_batch_norm|self.conv = nn.Conv2d(c, o, 3); self.norm = nn.BatchNorm2d(o)"
    f"|self.norm(self.conv(x)) * 2|b c d d|{IMAGE}",
    f"transposed_conv_2d|self.conv = nn.ConvTranspose2d(c, o, 3, stride=2, output_padding=1)"
    f"|torch.tanh(self.conv(x))|b c d d|{IMAGE}",
    f"conv_3d|self.conv = nn.Conv3d(c, o, 3)|self.conv(x)|b c d d d|{VOLUME}",
    f"conv_3d_asymmetric|self.conv = nn.Conv3d(c, o, (1, 3, 2), padding=(0, 1, 0))|self.conv(x)"
    f"|b c d d d|{VOLUME}",
    f"conv_3d_softmax_pools|self.conv = nn.Conv3d(c, o, 3); self.pool = nn.MaxPool3d(2)"
    f"|self.pool(torch.softmax(self.conv(x), 1))|b c d d d|{VOLUME}",
    f"conv_3d_group_norm_mean|self.conv = nn.Conv3d(c, o, 3); self.norm = nn.GroupNorm(2, o)"
    f"|self.norm(self.conv(x)).mean((2, 3, 4))|b c d d d|{VOLUME}",
    f"transposed_conv_3d|self.conv = nn.ConvTranspose3d(c, o, 3, stride=2)|self.conv(x)"
    f"|b c d d d|{VOLUME}",
    f"transposed_conv_3d_log_sum|self.conv = nn.ConvTranspose3d(c, o, 3)"
    f"|F.hardswish(torch.logsumexp(self.conv(x), 1, keepdim=True))|b c d d d|{VOLUME}",
    f"linear_scale_swish|self.linear = nn.Linear(c, o)|F.silu(self.linear(x)) * 0.5|b c|{ROWS}",
    f"linear_batch_norm_gelu|self.linear = nn.Linear(c, o); self.norm = nn.BatchNorm1d(o)"
    f"|F.gelu(self.norm(self.linear(x)))|b c|{ROWS}",
)

TEXT = """import torch
from torch import nn
import torch.nn.functional as F

{sizes}


class {name}(nn.Module):
    def __init__(self):
        super().__init__()
        {made}

    def forward(self, {arguments}):
        return {result}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
"""


def text(row: Row, *, full: bool = False, name: str = "Model", result: str = "{}") -> str:
    """The file of a problem, or of a candidate, whose `result` is made of the right one."""
    given = [part.strip() for part in row.inputs.split(";")]
    drawn = [it if "(" in it else f"torch.rand({', '.join(it.split())})" for it in given]
    return TEXT.format(
        sizes="\n".join((row.full if full else row.small).split()),
        name=name,
        made="\n        ".join(row.made.split("; ")),
        arguments=", ".join("xyz"[: len(given)]),
        result=result.format(row.forward),
        inputs=", ".join(drawn),
    )


WRONG = "torch.utils._pytree.tree_map(lambda t: t.half().float(), ({}))"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--full", action="store_true", help="at the sizes of the benchmark")
    parser.add_argument("--wrong", action="store_true", help="rounded to 16 bits once")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--inputs", default="own,hard")
    options = parser.parse_args()
    from python_inspector.api.sealed import Sealed
    from python_inspector.benchmarks import kernelbench
    from python_inspector.benchmarks.stated import judged, status_of

    unexpected = 0
    for row in TABLE:
        if options.names and row.name not in options.names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            files = Path(folder) / "problem.py", Path(folder) / "candidate.py"
            result = WRONG if options.wrong else "{}"
            files[0].write_text(text(row, full=options.full))
            files[1].write_text(text(row, full=options.full, name="ModelNew", result=result))
            start = time.monotonic()
            kinds = options.inputs.split(",")
            stated = kernelbench.stated(*files, inputs=kinds, device=options.device)
            said = judged(stated, Sealed(timeout=300))
            status = status_of(said)
        unexpected += status != ("fail" if options.wrong else "pass")
        print(f"{row.name:28} {status:8} {time.monotonic() - start:6.1f} s", flush=True)
        if status not in ("pass", "fail") or (status == "fail") != options.wrong:
            print("".join(f"  {kind}: {verdict}\n" for kind, verdict in said.items()), end="")
    return int(bool(unexpected))


if __name__ == "__main__":
    sys.exit(main())
