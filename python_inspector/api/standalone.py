"""A failing case as a folder for people who have torch and safetensors alone: tensors, a script
that compares what a kernel returns with float64, and the verdict."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .verdict import Verdict

if TYPE_CHECKING:
    import torch

    from ..format.operands import Output
    from .calling import Kernel
    from .prepared import Recorded

TENSORS, SCRIPT, VERDICT = "tensors.safetensors", "compare.py", "verdict.txt"


def write(folder: Path, of: Recorded, kernel: Kernel, verdict: Verdict) -> None:
    """Calls the kernel once more, and writes what it was given and what it returned."""
    from safetensors.torch import save_file

    call = _Call()
    args, kwargs = of.case.called
    named = [f"{name}={call.source(value)}" for name, value in kwargs.items()]
    source = ", ".join([*map(call.source, args), *named])
    outputs = kernel.call(of.kept.observed, of.case).first.outputs
    tensors = {f"given.{name}": t for name, t in call.tensors.items()}
    for name, output in outputs.items():
        tensors |= {f"{kind}.{name}": t for kind, t in _compared(of, name, output).items()}
    folder.mkdir(parents=True, exist_ok=True)
    kept = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    save_file(kept, folder / TENSORS)
    (folder / VERDICT).write_text(f"{verdict}\n", encoding="utf-8")
    script = SOURCE.format(
        title=f"{verdict.checkpoint}: {verdict.status}".replace('"', "'"),
        call=f"kernel({source})" if call.is_whole else "None  # an argument is no tensor or number",
        outputs=list(outputs),
        device=call.device,
    )
    (folder / SCRIPT).write_text(script, encoding="utf-8")


class _Call:
    """Arguments as Python, and the tensors in them by name."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.device = "cpu"
        self.is_whole = True
        """Whether all arguments could be written."""

    def source(self, value: Any) -> str:
        import torch

        if isinstance(value, torch.Tensor):
            name = f"{len(self.tensors)}"
            self.tensors[name] = value
            self.device = str(value.device)
            return f'given["{name}"]'
        if isinstance(value, float) and not math.isfinite(value):
            return f'float("{value}")'
        if value is None or isinstance(value, (bool, int, float, str, torch.dtype)):
            return repr(value)
        if type(value) in (tuple, list):
            items = ", ".join(map(self.source, value))
            return f"[{items}]" if isinstance(value, list) else f"({items}{',' * bool(value)})"
        if type(value) is dict:
            return "{" + ", ".join(f"{k!r}: {self.source(v)}" for k, v in value.items()) + "}"
        self.is_whole = False
        return "None"


def _compared(of: Recorded, name: str, output: Output) -> dict[str, torch.Tensor]:
    """What came, what is right, and how far each element may be from that."""
    import torch

    from ..recorder.explanation import judgement_without_members
    from ..recorder.tensors_of_outputs import as_tensor
    from ..trace.failing import figures

    y = as_tensor(output)
    judgement = judgement_without_members(of.kept)
    gates = judgement.gates.get(name) if judgement else None
    exact = (of.kept.reruns.oracle or {})[name][0]
    if gates is None or (y.dtype, y.shape) != (gates.r.dtype, gates.r.shape):
        return {"returned": y, "right": exact, "limit": torch.zeros(exact.shape)}
    told = figures(gates, y.to(gates.r.device), name, None)
    scale = gates.scales.layout.restored(gates.scales.element, y.shape)
    return {"returned": y, "right": gates.oracle(), "limit": told["element_limit"] * scale}


SOURCE = '''\
"""{title}

    python compare.py                  what the kernel returned when it was judged
    python compare.py FILE.py:KERNEL   what it returns now

It is compared with what is right, which was computed in float64. It needs torch and safetensors
alone.
"""

import importlib.util
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

HERE = Path(__file__).resolve().parent
OUTPUTS = {outputs!r}
tensors = load_file(HERE / "tensors.safetensors")
given = {{n[6:]: t.to("{device}") for n, t in tensors.items() if n.startswith("given.")}}


def call(kernel):
    return {call}


def results(value):
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value or ()
    return [t for item in items for t in results(item)]


def returned_by(named):
    file, _, name = named.rpartition(":")
    spec = importlib.util.spec_from_file_location("kernel", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules["kernel"] = module
    spec.loader.exec_module(module)
    names = [name for name in OUTPUTS if not name.endswith("_after")]
    return dict(zip(names, results(call(getattr(module, name)))))


def plain(t):
    t = torch.view_as_real(t) if t.is_complex() else t
    return t.detach().cpu().double()


def main():
    stored = {{name: tensors["returned." + name] for name in OUTPUTS}}
    returned = returned_by(sys.argv[1]) if len(sys.argv) > 1 else stored
    wrong = False
    for name, y in returned.items():
        y, right, limit = plain(y), plain(tensors["right." + name]), plain(tensors["limit." + name])
        if y.shape != right.shape:
            print(f"{{name}}: shape {{list(y.shape)}}, right is {{list(right.shape)}}")
            wrong = True
            continue
        error = torch.where((y == right) | (y.isnan() & right.isnan()), 0.0, (y - right).abs())
        error = error.nan_to_num(torch.inf, torch.inf)
        ratio = torch.where(error == 0, 0.0, error / limit)
        at = int(ratio.argmax())
        place = [int(i) for i in torch.unravel_index(torch.tensor(at), y.shape)]
        worst = (y, right, error, limit, ratio)
        value, exact, off, allowed, times = (float(t.flatten()[at]) for t in worst)
        print(f"{{name}} {{place}} of {{list(y.shape)}}: {{value:.9g}}, right is {{exact:.9g}}")
        print(f"  largest error {{off:.3g}}, limit {{allowed:.3g}}: {{times:.3g}} times the limit")
        print(f"  {{int((ratio > 1).sum())}} of {{y.numel()}} elements are beyond their limit")
        wrong |= times > 1
    if not wrong:
        print("No element is beyond its limit; verdict.txt has limits that are not computed here.")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
'''
