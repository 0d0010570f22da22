"""verify(): what any function makes of a recording's inputs, judged by the native harness."""

from __future__ import annotations

import inspect
import json
import subprocess
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import needs
from ..errors import HarnessError
from ..format.contract_words import NATIVE, asked
from ..format.operands import Output, output_of, read, save
from ..format.recording import BACKWARD, backward_kind, is_recorded_alone
from ..format.safetensors_file import read_header
from ..format.strict_json import load_json
from ..native import find_harness
from .recorded_gradients import differentiated
from .verdict import Verdict, announce

Function = Callable[..., Any]


class Unsupported(Exception):  # noqa: N818  a statement, not an error
    """To be raised by a function that does not do this checkpoint: it is not judged, nor failed."""


@dataclass(frozen=True)
class Call:
    """Which call of the model a function's operands are of: its fourth argument, if it has one."""

    checkpoint: str
    """The id: `<path>[:<function>]#<call>`."""
    block: str
    path: str
    """Of the module, "model.layers.0.self_attn"."""
    function: str
    """What was called within it; "" where it was the module itself."""
    call: int
    """Of this path and function, from 0."""
    step: int
    """Forward call of the model, from 0."""
    layer: int | None
    position: int | None
    """Slot of the step's first token; None where the recording does not say."""
    dtype: str
    """Of the recorded run: f32, f16, bf16."""
    config: Mapping[str, Any]
    """The model's configuration, as transformers writes it."""


def verify(
    function: Function,
    recording: Path | str,
    checkpoint: str | None = None,
    *,
    block: str | None = None,
    arrays: str = "torch",
    upcast: bool = False,
    device: Any = None,
    contract: str | None = None,
    margins: bool = True,
    harness: Path | str | None = None,
    backward: bool = False,
) -> list[Verdict]:
    """Calls `function(inputs, weights, params)` for each selected checkpoint; judges its results.

    `recording` is a folder, or a name of the project's own such as "llama-a1/decode-bf16".
    `checkpoint` is a regular expression over ids, `block` a kind of block; both None selects all.
    Inputs and weights are dicts of torch tensors or, with arrays="numpy", of arrays; numpy has no
    bf16, so 16-bit floats are then upcast to float32, exactly, as `upcast` does for torch. Tensors
    are on the host, or on the torch `device` that is named. A fourth
    argument, where the function has one (or `call=`), is the Call: layer, position, step, dtype,
    config, ids. The function returns a dict of outputs by name, or the only output itself; float32
    and float64 are accepted for 16-bit outputs and rounded. What a call leaves behind in a cache
    (names that end in "_after") may be missing or None and is not judged then; of a block `module`
    any output may, but for one: attention weights, which no flash kernel has.

    An exception of the function costs that checkpoint: its status is "error", or "unsupported" for
    plumbline.Unsupported, and the reason says what was raised and where.
    Where a 16-bit function rounds is inferred from its bits; `contract`, "eager", "fused" (once, at
    the output) or "flash", demands one. What a kernel may do inside ("sums-16" and the other words
    of fixtures/schema/contracts.json) is what the recording was made with (`inspector record
    --contract`), and states; "eager+sums-16" demands that it was.
    `backward=True` judges gradients of a recording that has them: the function is still that of
    the forward, an autograd.Function or whatever autograd goes back through, and runs under the
    recorded cotangents. One that makes gradients itself ("d_x") is called without it, with
    `block="rms_norm.backward"`.
    `margins=False` does not tell which known bugs would pass, and is faster.

    Raises HarnessError if there is no harness binary, nothing was selected, or the harness ended
    without a verdict.
    """
    if arrays not in ("torch", "numpy"):
        raise ValueError(f"arrays is {arrays!r}, expected torch or numpy")
    if device is not None and arrays != "torch":
        raise ValueError(f"device is {device!r}, which is for torch tensors: arrays is {arrays!r}")
    if backward and arrays != "torch":
        raise ValueError(f"backward goes with torch tensors: arrays is {arrays!r}")
    if arrays == "torch":
        needs.require("verify() with torch tensors", "torch")
    asked(contract, NATIVE)  # ValueError
    binary = find_harness(harness)
    with tempfile.TemporaryDirectory(prefix="plumbline-") as name:
        folder = Path(name)
        widens = upcast or arrays == "numpy"
        asked_of = _narrowed(checkpoint, block, backward)
        source, exported = _export(binary, recording, folder, asked_of, widens)
        called = _Called(function, backward)
        outputs, verdicts = _run(called, source, exported, arrays, folder, device)
        if outputs:
            results = folder / "outputs.safetensors"
            save(outputs, results)
            command: list[Any] = [binary, "judge", source.folder, results]
            command += [] if contract is None else ["--contract", contract]
            command += [] if margins else ["--no-margins"]
            expected = [entry["id"] for entry in exported if entry["id"] not in verdicts]
            verdicts |= judge_with_binary(command, folder / "verdicts.json", expected)
        result = [verdicts[entry["id"]] for entry in exported]
    for verdict in result:
        announce(verdict)
    return result


@dataclass(frozen=True)
class _Source:
    """The recording that operands are of."""

    folder: Path
    dtype: str
    config: Mapping[str, Any]


def _export(
    binary: Path,
    recording: Path | str,
    folder: Path,
    narrowed: Sequence[str],
    upcast: bool,
) -> tuple[_Source, list[dict[str, Any]]]:
    command = [binary, "export", recording, folder, *narrowed]
    if upcast:
        command += ["--upcast"]
    done = _call(command)
    if done.returncode != 0:
        raise HarnessError(_last_words("export", done))
    document = json.loads((folder / "checkpoints.json").read_text())
    exported: list[dict[str, Any]] = document["checkpoints"]
    if not exported:
        raise HarnessError(f"no checkpoint of {recording} was selected")
    source = Path(document["recording"])
    config = load_json(source / "recording.json").get("config", {})
    return _Source(source, document.get("dtype", ""), config), exported


def _narrowed(checkpoint: str | None, block: str | None, backward: bool) -> list[str]:
    """Options of harness export: `block` is a forward's."""
    out = [] if checkpoint is None else ["--checkpoint", checkpoint]
    if block is not None:
        return [*out, "--block", backward_kind(block) if backward else block]
    return [*out, "--direction", BACKWARD] if backward else out


class _Called:
    """The function, as it takes the Call, or what makes gradients of it."""

    def __init__(self, function: Function, backward: bool) -> None:
        self._takes_call = _takes_call(function)
        self._function = differentiated(function, self._takes_call) if backward else function
        self._backward = backward

    def __call__(self, entry: Mapping[str, Any], source: _Source, operands: list[Any]) -> Any:
        call = _call_of(entry, source)
        if self._backward:
            return self._function(*operands, call, list(entry["outputs"]))
        if self._takes_call == "named":
            return self._function(*operands, call=call)
        return self._function(*operands, *[call] * (self._takes_call == "positional"))


def _run(
    function: _Called,
    source: _Source,
    exported: list[dict[str, Any]],
    arrays: str,
    folder: Path,
    device: Any,
) -> tuple[dict[str, Output], dict[str, Verdict]]:
    """The outputs of all checkpoints, and verdicts on those that have none."""

    def taken_from(key: str) -> Any:
        array = read(tensors, key, arrays)
        return array if device is None else array.to(device)

    tensors = read_header(folder / "tensors.safetensors")
    results: dict[str, Output] = {}
    lost: dict[str, Verdict] = {}
    for entry in exported:
        inputs = {name: taken_from(ref["tensor"]) for name, ref in entry["inputs"].items()}
        by_key = {key: taken_from(key) for key in set(entry["weights"].values())}  # tied: one
        weights = {name: by_key[key] for name, key in entry["weights"].items()}
        operands = [inputs, weights, entry["params"]]
        try:
            returned = _by_name(entry, function(entry, source, operands))
            taken = {name: _taken(name, value) for name, value in returned.items()}
        except Unsupported as error:
            lost[entry["id"]] = _lost(entry, "unsupported", str(error))
        except _Returned as error:
            lost[entry["id"]] = _lost(entry, "error", str(error))
        except Exception as error:  # of the function, whose other checkpoints are judged
            lost[entry["id"]] = _lost(entry, "error", _where(error))
        else:
            results |= {f"{entry['id']}/{name}": value for name, value in taken.items()}
    return results, lost


def _takes_call(function: Function) -> str:
    """How the function takes the Call: "positional", "named", or "": not at all.

    A fourth parameter that has a default is the function's own, unless its name is "call".
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a builtin says nothing of its parameters
        return ""
    if any(p.name == "call" and p.kind is p.KEYWORD_ONLY for p in parameters):
        return "named"
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return "positional"
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) < 4:
        return ""
    fourth = positional[3]
    return "positional" if fourth.default is fourth.empty or fourth.name == "call" else ""


def _call_of(entry: Mapping[str, Any], source: _Source) -> Call:
    return Call(
        checkpoint=entry["id"],
        block=entry["block"],
        path=entry.get("path", ""),
        function=entry.get("function", ""),
        call=entry.get("call", 0),
        step=entry.get("step", 0),
        layer=entry.get("layer"),
        position=entry.get("position"),
        dtype=source.dtype,
        config=source.config,
    )


def _lost(entry: Mapping[str, Any], status: str, reason: str) -> Verdict:
    return Verdict(entry["id"], entry["block"], status, reason, {})


def _where(error: Exception) -> str:
    """The exception's type and text, and the innermost line of what is not a library's."""
    frames = traceback.extract_tb(error.__traceback__)[1:]  # the first is the call, above
    own = [frame for frame in frames if "site-packages" not in frame.filename]
    place = f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {error}{place}"


class _Returned(Exception):  # noqa: N818  what it is of, not an error of ours
    """What the function returned is no set of outputs."""


def _by_name(entry: Mapping[str, Any], returned: Any) -> Mapping[str, Any]:
    """The outputs that were given; None is one that was not."""
    expected = list(entry["outputs"])
    results = [name for name in expected if not name.endswith("_after")] or expected
    anything = is_recorded_alone(entry["block"], {})  # attention weights that no flash kernel has
    required = [] if anything else results
    if isinstance(returned, (tuple, list)) and anything and len(returned) <= len(results):
        returned = dict(zip(results, returned, strict=False))
    if isinstance(returned, Mapping):
        returned = {name: value for name, value in returned.items() if value is not None}
        if not returned or not set(required) <= returned.keys() <= set(expected):
            optional = sorted(set(expected) - set(required))
            raise _Returned(
                f"the function returned {sorted(returned)}, expected "
                + (f"{sorted(required)}" if required else f"some of {optional}")
                + (f" and perhaps {optional}" if required and optional else "")
            )
        return returned
    if len(results) != 1 and not anything:
        raise _Returned(f"the function returned one value, expected a dict of {sorted(results)}")
    return {results[0]: returned}


def _taken(name: str, value: Any) -> Output:
    try:
        return output_of(value)
    except TypeError as error:
        raise _Returned(f"output {name} {error}") from None


def judge_with_binary(
    command: list[Any], lines: Path, expected: Sequence[str] = ()
) -> dict[str, Verdict]:
    """By id what `harness judge`, called by `command`, says; HarnessError if it says nothing."""
    done = _call([*command, "--json", lines])
    if not lines.is_file():
        raise HarnessError(_last_words("judge", done))
    verdicts = {
        item["checkpoint"]: Verdict.of(item)
        for item in map(json.loads, lines.read_text().splitlines())
        if "checkpoint" in item and "status" in item
    }
    missing = set(expected) - verdicts.keys()
    if missing:
        raise HarnessError(
            f"no verdict for {len(missing)} of {len(expected)} checkpoints, such as "
            f"{min(missing)}; {_last_words('judge', done)}"
        )
    return verdicts


def _call(command: list[Any]) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def _last_words(subcommand: str, done: subprocess.CompletedProcess[str]) -> str:
    words = (done.stderr or done.stdout).strip().splitlines()
    return (
        f"harness {subcommand} ended with {done.returncode}: {words[-1] if words else 'no output'}"
    )
