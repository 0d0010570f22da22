"""Computes ops for a device "python:MODULE" of the harness, with the module's functions.

The harness runs this text with the module's name and the text of its own NumPy functions, which are
the module "numpy"; what goes through the pipe: harness/remote/protocol.md. A function without a _
in front has the name of an op. It takes the inputs by their names in the op table (harness list
--ops), as arrays, and `p`, and returns the outputs in the table's order. It raises
NotImplementedError for what it does not do.

arrays     the module may set it: "numpy" (the default; 16-bit and 8-bit floats come as float32 and
           are rounded on the way back), "torch" (of the call's dtype; on `device`, if the module
           sets that) or "jax" (of the call's dtype)
formulas   the module may set it to True (of numpy arrays): ops of one formula that it has no
           function for are computed from the formula's text
contracts  the module may set it: {op: {"accumulator_bits": .., "truncated_block": .., "fused": ..}}
p          p.eps and so on: the parameters, by their names in kernels/plugin.h, 0 where they are
           absent; p.outputs: a dict of dtype and shape for each output; p.rounded(x): x rounded to
           the call's dtype, where an op rounds inside; p.lowest: the lowest number of that dtype
"""

import importlib
import json
import math
import os
import sys
import types
from pathlib import Path

import numpy as np

KINDS = {
    "F64": "f8", "F32": "f4", "F16": "u2", "BF16": "u2", "I64": "i8", "I32": "i4", "U32": "u4",
    "BOOL": "?", "U8": "u1", "I8": "i1", "F8_E4M3": "u1", "F8_E5M2": "u1",
}  # fmt: skip
FLOATS = {"F16": (5, 10), "BF16": (8, 7), "F8_E4M3": (4, 3), "F8_E5M2": (5, 2)}
"""Bits of exponent and significand."""
LOWEST = {
    "F64": -np.finfo("f8").max, "F32": -np.finfo("f4").max, "F16": -65504.0,
    "BF16": -(2 - 2.0**-7) * 2.0**127,
}  # fmt: skip
ERF = np.frompyfunc(math.erf, 1, 1)
FUNCTIONS = {
    "abs": np.abs, "ceil": np.ceil, "cos": np.cos, "exp": np.exp, "expm1": np.expm1,
    "floor": np.floor, "log": np.log, "log1p": np.log1p, "pow": np.power, "round": np.round,
    "sin": np.sin, "sqrt": np.sqrt, "tanh": np.tanh, "where": np.where,
    "erf": lambda x: ERF(x).astype(np.float64),
    "fma": lambda a, b, c: wide(np.asarray(np.longdouble(a) * b + c)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x / 2 * (1 + ERF(x / 2**0.5).astype(np.float64)),
    "gelu_tanh": lambda x: x / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))),
}  # fmt: skip


def widened(bits, dtype):
    """Floats of 16 or 8 bits as float32; anything else as it is."""
    if dtype not in FLOATS:
        return bits
    exponent, significand = FLOATS[dtype]
    wide = bits.astype(np.int64)
    sign, e = wide >> (exponent + significand), (wide >> significand) & ((1 << exponent) - 1)
    m, bias = wide & ((1 << significand) - 1), (1 << (exponent - 1)) - 1
    whole = np.where(e == 0, m, m + (1 << significand)).astype(np.float64)
    out = np.ldexp(whole, np.maximum(e, 1) - bias - significand)
    if dtype == "F8_E4M3":  # no infinities
        out = np.where((e == 15) & (m == 7), np.nan, out)
    else:
        out = np.where(e == (1 << exponent) - 1, np.where(m == 0, np.inf, np.nan), out)
    return np.where(sign == 1, -out, out).astype(np.float32)


def narrowed(x, dtype):
    """To the nearest, ties to even; the bits."""
    if dtype not in FLOATS:
        return np.asarray(x).astype(KINDS[dtype])
    exponent, significand = FLOATS[dtype]
    x = np.asarray(x, np.float64)
    size, bias = np.abs(x), (1 << (exponent - 1)) - 1
    _, e = np.frexp(np.where(np.isfinite(size), size, 1))
    step = np.where(size > 0, np.maximum(e - 1, 1 - bias), 1 - bias) - significand
    units = np.rint(np.ldexp(np.where(np.isfinite(size), size, 0), -step)).astype(np.int64)
    bits = units + ((step + significand + bias - 1).astype(np.int64) << significand)
    top = (1 << exponent) - 1
    infinity = (top << significand) + (7 if dtype == "F8_E4M3" else 0)
    bits = np.where(np.isinf(size) | (bits > infinity - (dtype == "F8_E4M3")), infinity, bits)
    bits = np.where(np.isnan(size), infinity | (1 << (significand - 1)), bits)
    return (bits + (np.signbit(x).astype(np.int64) << (exponent + significand))).astype(
        KINDS[dtype]
    )


class Params(types.SimpleNamespace):
    """What is absent is 0."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return 0


def wide(x):
    """float64, or int64 of whole numbers and bools."""
    return x.astype(np.float64 if x.dtype.kind == "f" else np.int64)


def evaluated(text, inputs, p):
    """An op that is one formula."""
    number = p.scale or p.cap or p.eps or p.attention_scaling
    names = {"R": lambda x: wide(np.asarray(p.rounded(x))), "number": number, "shift": p.shift}
    inputs = {name: wide(x) for name, x in inputs.items()}
    try:
        code = compile(text, "formula", "eval")
    except SyntaxError:
        raise NotImplementedError(f"has no {text}") from None
    return eval(code, {"__builtins__": {}}, FUNCTIONS | names | inputs)


def arrays_of(module):
    """How inputs are made of bits, and bits of outputs."""
    kind = getattr(module, "arrays", "numpy")
    if kind == "numpy":
        return widened, narrowed
    if kind == "jax":
        import jax.numpy as jnp
        import ml_dtypes

        types_ = {"BF16": ml_dtypes.bfloat16, "F16": np.float16, "F8_E4M3": ml_dtypes.float8_e4m3fn,
                  "F8_E5M2": ml_dtypes.float8_e5m2}  # fmt: skip
        return (
            lambda bits, dtype: jnp.asarray(bits.view(types_[dtype]) if dtype in types_ else bits),
            lambda x, dtype: np.asarray(x).astype(types_.get(dtype, KINDS[dtype])),
        )
    if kind != "torch":
        raise ValueError(f'arrays is {kind!r}, expected "numpy", "torch" or "jax"')
    import torch

    types_ = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16,
              "BF16": torch.bfloat16, "I64": torch.int64, "I32": torch.int32,
              "U32": torch.uint32, "BOOL": torch.bool,
              "U8": torch.uint8, "I8": torch.int8, "F8_E4M3": torch.float8_e4m3fn,
              "F8_E5M2": torch.float8_e5m2}  # fmt: skip
    device = getattr(module, "device", "cpu")

    def tensor(bits, dtype):
        flat = torch.from_numpy(np.array(bits).reshape(-1).view(np.uint8))
        return flat.view(types_[dtype]).reshape(bits.shape).to(device)

    def bits(x, dtype):
        return x.detach().to("cpu", types_[dtype]).contiguous().flatten().view(torch.uint8).numpy()

    return tensor, bits


def answer(module, of_bits, to_bits, about, header, payload):
    """The outputs' bits by name, for one call."""
    p = Params(**json.loads(about["params"]))
    p.outputs = {it["name"]: it for it in json.loads(about["outputs"])}
    dtype = about["dtype"]
    p.rounded = lambda x: of_bits(to_bits(x, dtype), dtype)
    p.lowest = LOWEST.get(dtype, 0)
    inputs = {}
    for name, t in header.items():
        begin, end = t["data_offsets"]
        kind = np.dtype(KINDS[t["dtype"]])
        array = np.frombuffer(payload[begin:end], kind).reshape(t["shape"])
        inputs[name] = of_bits(array, t["dtype"])
    function = getattr(module, about["op"], None)
    if function is not None:
        results = function(**inputs, p=p)
    elif getattr(module, "formulas", False) and "formula" in about and ";" not in about["formula"]:
        results = evaluated(about["formula"], inputs, p)
    else:
        raise NotImplementedError(f"{module.__name__} has no {about['op']}")
    if not isinstance(results, tuple):
        results = (results,)
    if len(results) != len(p.outputs):
        raise ValueError(
            f"{len(results)} results, expected {len(p.outputs)}: {', '.join(p.outputs)}"
        )
    out = {}
    for (name, wanted), result in zip(p.outputs.items(), results, strict=True):
        if list(result.shape) != wanted["shape"]:
            raise ValueError(f"{name} is {list(result.shape)}, expected {wanted['shape']}")
        out[name] = (wanted, np.ascontiguousarray(to_bits(result, wanted["dtype"])).tobytes())
    return out


def message(metadata, outputs=None):
    """A safetensors file of outputs."""
    header, at = {"__metadata__": metadata}, 0
    for name, (wanted, data) in (outputs or {}).items():
        header[name] = {"dtype": wanted["dtype"], "shape": wanted["shape"],
                        "data_offsets": [at, at + len(data)]}  # fmt: skip
        at += len(data)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"".join(d for _, d in (outputs or {}).values())


def read(source, size):
    """Exactly so many bytes; none where the harness has ended."""
    data = source.read(size)
    return data if len(data) == size else b""


def serve(module, source, to):
    of_bits, to_bits = arrays_of(module)
    contracts = getattr(module, "contracts", {})
    said = {
        name: contracts.get(name, {})
        for name, it in vars(module).items()
        if isinstance(it, types.FunctionType)
        and it.__module__ == module.__name__
        and name[0] != "_"
    }
    if getattr(module, "formulas", False):
        said["formulas"] = {}
    name = f"{module.__name__} of Python {sys.version.split()[0]}"
    to.write(message({"protocol": "plumbline-device 1", "name": name, "ops": json.dumps(said)}))
    to.flush()
    while length := read(source, 8):
        header = json.loads(read(source, int.from_bytes(length, "little")))
        about = header.pop("__metadata__")
        payload = read(source, max((t["data_offsets"][1] for t in header.values()), default=0))
        try:
            with np.errstate(all="ignore"):
                reply = message({}, answer(module, of_bits, to_bits, about, header, payload))
        except NotImplementedError as error:
            reply = message({"unsupported": str(error) or "is not implemented"})
        except Exception as error:
            reply = message({"error": f"{type(error).__name__}: {error}"})
        to.write(reply)
        to.flush()


def main():
    name, numpy_ops = sys.argv[1:3]
    source, to = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a module prints is no answer
    if name == "numpy":
        module = types.ModuleType("numpy_ops")
        exec(compile(numpy_ops, "numpy_ops.py", "exec"), vars(module))
    else:
        sys.path.insert(0, str(Path.cwd()))
        module = importlib.import_module(name)
    serve(module, source, to)


if __name__ == "__main__":
    main()
