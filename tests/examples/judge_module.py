"""A kernel of one's own against a torch module: `pytest tests/examples/judge_module.py`."""

import numpy as np
import plumbline
import torch


def layer_norm(x, weight, bias):
    centred = x - x.mean(-1, keepdims=True)
    variance = np.mean(centred * centred, axis=-1, keepdims=True)
    return centred / np.sqrt(variance + np.float32(1e-5)) * weight + bias


def test_layer_norm():
    norm = torch.nn.LayerNorm(64)
    plumbline.check(
        layer_norm,
        like=norm,
        inputs=plumbline.draw(shape=(4, 9, 64)),  # nine kinds of hard values
        weights=dict(norm.named_parameters()),
        arrays="numpy",
    )
