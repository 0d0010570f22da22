"""The names of devices: the harness's, which PyTorch understands as well."""

from __future__ import annotations

import argparse
import re


def device_name(text: str) -> str:
    """The type of --device: `cpu`, or `cuda:N` (`cuda`: the first)."""
    if text == "cuda":
        return "cuda:0"
    if not re.fullmatch(r"cpu|cuda:(0|[1-9][0-9]?)", text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected cpu, cuda or cuda:N")
    return text


def unusable(device: str) -> str:
    """Why PyTorch cannot measure on a device of that name, or nothing."""
    if device == "cpu":
        return ""
    import torch  # only where it is needed

    count = torch.cuda.device_count()
    if int(device.removeprefix("cuda:")) < count:
        return ""
    return f"this PyTorch sees {count or 'no'} GPU{'' if count == 1 else 's'}; try --device cpu"
