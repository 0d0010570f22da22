"""A recorded model as a graph of ONNX's own operators for transformers (opset 23)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from onnx import TensorProto, helper, numpy_helper

from .engine import head_dim, windows

NORMS = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
         "post_feedforward_layernorm")  # fmt: skip


class Graph:
    """Nodes and weights of one model; every method returns the name of what it made."""

    def __init__(self, hf: dict[str, Any], weights: dict[str, torch.Tensor]) -> None:
        self.hf, self.weights = hf, weights
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}
        self.gemma = hf["model_type"] == "gemma2"

    def op(self, kind: str, *inputs: str, outputs: tuple[str, ...] = (), **attributes: Any) -> str:
        outputs = outputs or (f"{kind}{len(self.nodes)}",)
        self.nodes.append(helper.make_node(kind, list(inputs), list(outputs), **attributes))
        return outputs[0]

    def constant(self, value: Any, name: str = "") -> str:
        name = name or f"constant{len(self.constants)}"
        self.constants[name] = numpy_helper.from_array(np.asarray(value), name)
        return name

    def scalar(self, value: float) -> str:
        return self.constant(np.float32(value))

    def linear(self, x: str, name: str) -> str:
        weight = self.weights[f"{name}.weight"].T.contiguous().numpy()
        out = self.op("MatMul", x, self.constant(weight, f"{name}.weight"))
        bias = self.weights.get(f"{name}.bias")
        return out if bias is None else self.op("Add", out, self.constant(bias.numpy()))

    def norm(self, x: str, name: str, made: str = "") -> str:
        weight = self.constant((self.weights[f"{name}.weight"] + float(self.gemma)).numpy())
        outputs = (made,) if made else ()
        return self.op(
            "RMSNormalization", x, weight, outputs=outputs, epsilon=self.hf["rms_norm_eps"]
        )

    def heads(self, x: str, count: int) -> str:
        split = self.op("Reshape", x, self.constant([0, 0, count, head_dim(self.hf)]))
        return self.op("Transpose", split, perm=[0, 2, 1, 3])

    def rotated(self, x: str) -> str:
        return self.op("RotaryEmbedding", x, "cos", "sin", "positions")

    def attention(self, x: str, path: str, layer: int) -> str:
        hf, path = self.hf, f"{path}.self_attn"
        counts = hf["num_attention_heads"], hf["num_key_value_heads"], hf["num_key_value_heads"]
        q, k, v = (
            self.heads(self.linear(x, f"{path}.{name}_proj"), count)
            for name, count in zip("qkv", counts, strict=True)
        )
        kept = f"present_k{layer}", f"present_v{layer}"
        mask = "mask_window" if windows(hf)[layer] else "mask"
        scale = float(hf["query_pre_attn_scalar"] if self.gemma else head_dim(hf)) ** -0.5
        out = self.op(
            "Attention", self.rotated(q), self.rotated(k), v, mask, f"past_k{layer}",
            f"past_v{layer}", outputs=(f"attention{layer}", *kept), scale=scale,
            softcap=float(hf.get("attn_logit_softcapping") or 0),
        )  # fmt: skip
        merged = self.op("Transpose", out, perm=[0, 2, 1, 3])
        return self.linear(self.op("Reshape", merged, self.constant([0, 0, -1])), f"{path}.o_proj")

    def mlp(self, x: str, path: str) -> str:
        gate = self.linear(x, f"{path}.mlp.gate_proj")
        if self.gemma:
            active = self.op("Gelu", gate, approximate="tanh")
        else:
            active = self.op("Mul", gate, self.op("Sigmoid", gate))
        up = self.linear(x, f"{path}.mlp.up_proj")
        return self.linear(self.op("Mul", active, up), f"{path}.mlp.down_proj")

    def layer(self, x: str, index: int) -> str:
        path = f"model.layers.{index}"
        before, after = (f"{path}.{name}" for name in NORMS[:2])
        made = self.attention(self.norm(x, before), path, index)
        if not self.gemma:
            x = self.op("Add", x, made)
            return self.op("Add", x, self.mlp(self.norm(x, after), path), outputs=(path,))
        x = self.op("Add", x, self.norm(made, after))
        made = self.mlp(self.norm(x, f"{path}.{NORMS[2]}"), path)
        return self.op("Add", x, self.norm(made, f"{path}.{NORMS[3]}"), outputs=(path,))

    def model(self) -> bytes:
        """The file: ids, positions, masks, tables and caches to logits, layers and caches."""
        embedding = self.constant(self.weights["model.embed_tokens.weight"].numpy(), "embedding")
        scale = self.scalar(self.hf["hidden_size"] ** 0.5 if self.gemma else 1)
        x = self.op(
            "Mul", self.op("Gather", embedding, "ids"), scale, outputs=("model.embed_tokens",)
        )
        for index in range(self.hf["num_hidden_layers"]):
            x = self.layer(x, index)
        x = self.norm(x, "model.norm", "model.norm")
        tied = self.hf["tie_word_embeddings"]
        logits = self.linear(x, "model.embed_tokens" if tied else "lm_head")
        if cap := self.hf.get("final_logit_softcapping"):
            inner = self.op("Tanh", self.op("Div", logits, self.scalar(cap)))
            logits = self.op("Mul", inner, self.scalar(cap))
        self.op("Identity", logits, outputs=("logits",))
        return self._file()

    def _file(self) -> bytes:
        layers = range(self.hf["num_hidden_layers"])
        floats = ["cos", "sin", *(f"past_{x}{i}" for i in layers for x in "kv")]
        kinds = [("ids", TensorProto.INT64), ("positions", TensorProto.INT64)]
        kinds += [(name, TensorProto.BOOL) for name in ("mask", "mask_window")]
        kinds += [(name, TensorProto.FLOAT) for name in floats]
        outputs = ["logits", "model.embed_tokens", "model.norm"]
        outputs += [f"model.layers.{i}" for i in layers]
        outputs += [f"present_{x}{i}" for i in layers for x in "kv"]
        graph = helper.make_graph(
            self.nodes, "recorded", [helper.make_tensor_value_info(*kind, None) for kind in kinds],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
            list(self.constants.values()),
        )  # fmt: skip
        opset = [helper.make_opsetid("", 23)]
        return bytes(
            helper.make_model(graph, opset_imports=opset, ir_version=10).SerializeToString()
        )
