"""A kernel of one's own, judged: LLaMA's RMSNorm in NumPy, right and then with one mistake."""

import numpy as np
import plumbline


def rms_norm(inputs, weights, params):
    x = inputs["x"].astype(np.float32)
    n = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(params["eps"]))
    return n * (params["weight_offset"] + weights["weight"])


def wrong_rms_norm(inputs, weights, params):
    return rms_norm(inputs, weights, {**params, "eps": 10 * params["eps"]})


for kernel in (rms_norm, wrong_rms_norm):
    verdicts = plumbline.verify(
        kernel, "fixtures/llama-a1/whole-f32", block="rms_norm", arrays="numpy"
    )
    passed = sum(verdict.passed for verdict in verdicts)
    print(f"{kernel.__name__}: {passed} of {len(verdicts)} checkpoints pass")
    for verdict in verdicts[:1]:
        print(f"  {verdict.checkpoint}: {verdict.status} {verdict.reason}")
