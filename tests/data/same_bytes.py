"""A recording of tensors that have the bytes of others, and ways for that to be bad."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from changes import Json, drop, put
from good_recordings import header, output_of, ref

from python_inspector.format import spool
from python_inspector.format.generator import UNIT, Generator, generate
from python_inspector.format.recording import Checkpoint, Contract
from python_inspector.format.writer import RecordingWriter


def write_same_bytes(out: Path) -> None:
    """Two sums of the same values: of [1, 3, 8] with t0 to t3, then of [3, 1, 8], whose t4 to t7
    have their payloads. t8 is generated, and t9 has a payload of its own."""
    generator = torch.Generator().manual_seed(5)
    x, y = (torch.randn(1, 3, 8, generator=generator).bfloat16() for _ in range(2))
    rule = Generator(1, UNIT)
    made = generate(rule, torch.bfloat16, (3, 1, 8))
    with patch.object(spool, "BESIDE", 1), RecordingWriter(out) as writer:
        accumulator = {"bits": 24, "rounding": "nearest"}
        writer.contract("eager", Contract("bf16", "f32", accumulator, "eager"))
        writer.generated(made, rule)
        for name, shape in (("first", (1, 3, 8)), ("second", (3, 1, 8))):
            a, b = x.reshape(shape), y.reshape(shape)
            inputs = {"a": ref(writer, a), "b": ref(writer, b)}
            outputs = {"out": output_of(writer, a + b, a.double() + b.double())}
            writer.checkpoint(
                Checkpoint(f"m:{name}#0", "add", "m", name, 0, 0, "eager", {}, inputs, {}, outputs)
            )
        writer.tensor(made)
        writer.tensor(x - y)
        writer.commit(header(out.name))


T4 = ("tensors", "t4")
OWNER = (*T4, "payload_of")


def beside_a_generator(document: Json) -> None:
    put(*T4, "generator", value=document["tensors"]["t8"]["generator"])(document)
    drop(*T4, "file")(document)


def of_one_that_is_not_there(document: Json) -> None:
    document["tensors"]["t90"] = document["tensors"]["t0"]
    put(*OWNER, value="t90")(document)


# name, word that the message must hold, what to do to the parsed recording.json
SAME_BYTES: list[tuple[str, str, Callable[[Json], Any]]] = [
    ("payload-of-unknown", "t99", put(*OWNER, value="t99")),
    ("payload-of-itself", "t4.payload_of", put(*OWNER, value="t4")),
    ("payload-of-one-without", "t4.payload_of", put(*OWNER, value="t5")),
    ("payload-of-generated", "t4.payload_of", put(*OWNER, value="t8")),
    ("payload-of-weight", "t4.payload_of", put(*OWNER, value="w0")),
    ("payload-of-number", "t4.payload_of", put(*OWNER, value=0)),
    ("payload-of-null", "t4.payload_of", put(*OWNER, value=None)),
    ("payload-of-other", "t4.sha256", put(*OWNER, value="t9")),
    ("payload-of-other-dtype", "t4.dtype", put(*T4, "dtype", value="f16")),
    ("payload-of-other-size", "t4.shape", put(*T4, "shape", value=[3, 8, 8])),
    ("payload-of-without-file", "t4", drop(*T4, "file")),
    ("payload-of-beside-generator", "payload_of", beside_a_generator),
    ("payload-of-beside-model-file", "model_file", put(*T4, "model_file", value="x")),
    ("payload-of-one-not-there", "t90", of_one_that_is_not_there),
]  # fmt: skip
