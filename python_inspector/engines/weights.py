"""The model that a recording is of, for engines: its configuration and its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from python_inspector.format.named_recordings import recording_folder
from python_inspector.format.operands import read
from python_inspector.format.safetensors_file import SafetensorsFile, read_header
from python_inspector.format.strict_json import load_json


def weights_of(recording: Path | str, arrays: str = "torch") -> dict[str, Any]:
    """All weights of a chained recording by their HuggingFace names, tied ones once."""
    file = _weights(_folder(recording))
    return {name: read(file, name, arrays) for name in file.tensors}


def config_of(recording: Path | str) -> dict[str, Any]:
    """The model's configuration, as transformers writes it."""
    config: dict[str, Any] = load_json(_folder(recording) / "recording.json")["config"]
    return config


def save_model(recording: Path | str, folder: Path) -> Path:
    """Writes config.json and model.safetensors, as engines load from HuggingFace's hub."""
    source = _folder(recording)
    folder.mkdir(parents=True, exist_ok=True)
    config = config_of(recording)
    config.setdefault("architectures", [_architecture(source)])
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "model.safetensors").write_bytes(_weights(source).path.read_bytes())
    return folder


def transformers_model(recording: Path | str, dtype: Any = None, attention: str = "eager") -> Any:
    """The recorded model, built anew by transformers; of the recorded dtype, or another."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from python_inspector.format.recording import TORCH_DTYPES

    config = config_of(recording)
    recorded = TORCH_DTYPES[load_json(_folder(recording) / "recording.json")["provenance"]["dtype"]]
    settings = AutoConfig.for_model(**config)
    model = AutoModelForCausalLM.from_config(
        settings, dtype=dtype or recorded, attn_implementation=attention
    )
    state = weights_of(recording)
    missing, unexpected = model.load_state_dict(state, strict=False)
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    if unexpected or set(missing) - tied:
        raise ValueError(
            f"{recording}: its weights are not those of a {type(model).__name__}: "
            f"missing {sorted(set(missing) - tied)[:3]}, unknown {unexpected[:3]}"
        )
    model.tie_weights()
    with torch.no_grad():
        return model.eval()


def _architecture(folder: Path) -> str:
    name: str = load_json(folder / "recording.json")["provenance"]["architecture"]
    return name


def _folder(recording: Path | str) -> Path:
    found = recording_folder(Path(recording))
    return found.parent if found.is_file() else found


def _weights(folder: Path) -> SafetensorsFile:
    entry = load_json(folder / "recording.json")["files"]["weights"]
    return read_header(folder / entry["path"])
