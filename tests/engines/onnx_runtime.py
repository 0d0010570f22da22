"""ONNX Runtime's CPU kernels, each as a model of one node."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from onnx import TensorProto, helper

from .kernel import Case, Kernel, Result, UnsupportedError, allowed, require

TYPES = {
    torch.float32: TensorProto.FLOAT,
    torch.float16: TensorProto.FLOAT16,
    torch.bfloat16: TensorProto.BFLOAT16,
    torch.bool: TensorProto.BOOL,
    torch.int32: TensorProto.INT32,
    torch.int64: TensorProto.INT64,
}
Node = tuple[str, str, tuple[str, ...], int, tuple[tuple[str, Any], ...]]


def node(
    op: str, inputs: Mapping[str, torch.Tensor | None], outputs: int = 1, domain: str = "",
    **attributes: Any,
) -> torch.Tensor:  # fmt: skip
    """The first output of one node; an input that is None is left out."""
    given = {name: tensor for name, tensor in inputs.items() if tensor is not None}
    names = tuple(name if inputs[name] is not None else "" for name in inputs)
    types = tuple((name, TYPES[tensor.dtype]) for name, tensor in given.items())
    session = _session((op, domain, names, outputs, tuple(attributes.items())), types)
    binding = session.io_binding()
    for name, tensor in given.items():
        binding.bind_ortvalue_input(name, _given(tensor))
    binding.bind_output("out0")
    try:
        session.run_with_iobinding(binding)
    except Exception as error:  # onnxruntime has no base class of its own
        raise UnsupportedError(f"{op}: {str(error).strip().splitlines()[0][:160]}") from error
    return torch.from_dlpack(binding.get_outputs()[0]._ortvalue.to_dlpack()).clone()


@lru_cache
def _session(described: Node, types: tuple[tuple[str, int], ...]) -> Any:
    op, domain, names, outputs, attributes = described
    produced = [f"out{index}" for index in range(outputs)]
    body = helper.make_node(op, list(names), produced, domain=domain, **dict(attributes))
    graph = helper.make_graph(
        [body],
        op,
        [helper.make_tensor_value_info(name, kind, None) for name, kind in types],
        [helper.make_tensor_value_info("out0", types[0][1], None)],
    )
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 2
    try:
        return ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        raise UnsupportedError(f"{op}: {str(error).strip().splitlines()[0][:160]}") from error


def _given(tensor: torch.Tensor) -> Any:
    tensor = tensor.contiguous()
    if tensor.dtype == torch.bfloat16:
        bits = tensor.view(torch.int16).numpy().view(np.uint16)
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, TensorProto.BFLOAT16)
    return ort.OrtValue.ortvalue_from_numpy(tensor.numpy())


def rms_norm(case: Case) -> Result:
    weight = case["weight"] + case.params["weight_offset"]
    inputs = {"x": case["x"], "scale": weight}
    return node("RMSNormalization", inputs, axis=-1, epsilon=case.params["eps"])


def simplified_norm(case: Case) -> Result:
    weight = case["weight"] + case.params["weight_offset"]
    inputs = {"x": case["x"], "scale": weight}
    return node("SimplifiedLayerNormalization", inputs, axis=-1, epsilon=case.params["eps"])


def skip_norm(case: Case) -> Result:
    """The residual is zero: the sum is x itself."""
    weight = case["weight"] + case.params["weight_offset"]
    x = case["x"]
    require(x.dim() == 3, "takes [batch, token, channel]")
    inputs = {"x": x, "skip": torch.zeros_like(x), "gamma": weight}
    return node(
        "SkipSimplifiedLayerNormalization", inputs, domain="com.microsoft",
        epsilon=case.params["eps"],
    )  # fmt: skip


def rotary(case: Case) -> Result:
    require(case.params["style"] == "half", "interleaved")
    half = case["cos"].shape[-1] // 2
    cos, sin = (case[name][..., :half] for name in ("cos", "sin"))

    def turn(x: torch.Tensor) -> torch.Tensor:
        batch = x.shape[0]
        tables = (each.expand(batch, *each.shape[1:]) for each in (cos, sin))
        return node("RotaryEmbedding", dict(zip(("x", "cos", "sin"), (x, *tables), strict=True)))

    return {"q": turn(case["q"]), "k": turn(case["k"])}


def attention(case: Case) -> Result:
    mask = allowed(case)
    inputs = {"q": case["q"], "k": case["k"], "v": case["v"], "mask": mask}
    out = node(
        "Attention", inputs, scale=case.params["scale"], softcap=case.params["softcap"] or 0.0
    )
    return out.transpose(1, 2)


def grouped_query_attention(case: Case) -> Result:
    q, k, v = case["q"], case["k"], case["v"]
    params = case.params
    require(case.get("key_valid") is None and case.get("mask") is None, "with a mask")
    require(bool(params["causal"]), "not causal")
    queries, keys = q.shape[2], k.shape[2]
    require(params["query_offset"] - params["key_offset"] + queries == keys, "slots to spare")
    past = keys - queries
    require(past == 0 or queries == 1, "chunks")

    def packed(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2).flatten(2)

    inputs = {
        "q": packed(q),
        "k": packed(k[:, :, past:]),
        "v": packed(v[:, :, past:]),
        "past_k": k[:, :, :past],
        "past_v": v[:, :, :past],
        "seqlens": torch.full((q.shape[0],), keys - 1, dtype=torch.int32),
        "total": torch.tensor([keys], dtype=torch.int32),
    }
    out = node(
        "GroupQueryAttention", inputs, outputs=3, domain="com.microsoft",
        num_heads=q.shape[1], kv_num_heads=k.shape[1], scale=params["scale"],
        softcap=params["softcap"] or 0.0, local_window_size=int(params["window"] or -1),
    )  # fmt: skip
    return out.unflatten(-1, (q.shape[1], -1))


def activation(case: Case) -> Result:
    forms = {"gelu": "none", "gelu_pytorch_tanh": "tanh"}
    function = case.params["function"]
    if function == "tanh":
        return node("Tanh", {"x": case["x"]})
    require(function in forms, f"no operator for {function}")
    return node("Gelu", {"x": case["x"]}, approximate=forms[function])


def linear(case: Case) -> Result:
    x, bias = case["x"], case.get("bias")
    inputs = {"a": x.reshape(-1, x.shape[-1]), "b": case["weight"], "c": bias}
    out = node("Gemm", inputs, transB=1)
    return out.reshape(*x.shape[:-1], out.shape[-1])


def kernels() -> list[Kernel]:
    runs = [
        ("rms_norm", "RMSNormalization", rms_norm),
        ("rms_norm", "SimplifiedLayerNormalization", simplified_norm),
        ("rms_norm", "SkipSimplifiedLayerNormalization", skip_norm),
        ("rotary", "RotaryEmbedding", rotary),
        ("sdpa", "Attention", attention),
        ("sdpa", "GroupQueryAttention", grouped_query_attention),
        ("activation", "Gelu, Tanh", activation),
        ("linear", "Gemm", linear),
    ]
    return [Kernel("onnxruntime", block, name, run) for block, name, run in runs]
