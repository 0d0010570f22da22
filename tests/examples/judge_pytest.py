"""A kernel of one's own in a test: `pytest tests/examples/judge_pytest.py`."""

import numpy as np
import plumbline
import pytest


def rms_norm(inputs, weights, params):
    x = inputs["x"].astype(np.float32)
    n = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(params["eps"]))
    return n * (params["weight_offset"] + weights["weight"])


@pytest.mark.parametrize("recording", ["llama-a1/whole-f32", "gemma2-a4/whole-f32"])
def test_rms_norm(recording):
    verdicts = plumbline.verify(rms_norm, recording, block="rms_norm", arrays="numpy")
    assert all(v.passed for v in verdicts), "\n".join(map(str, verdicts))
