"""The model that a recording is of, for engines: its configuration and its weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from ..format.model_files import MODEL_FILE, file_of, open_files
from ..format.named_recordings import recording_folder
from ..format.operands import read
from ..format.strict_json import load_json


def weights_of(recording: Path | str, arrays: str = "torch") -> dict[str, Any]:
    """All weights of a chained recording by their HuggingFace names, tied ones once."""
    folder = _folder(recording)
    document = load_json(folder / "recording.json")
    files = open_files(folder, document)
    if "weights" in files:  # a file that recordings share holds all of the model
        return {name: read(files["weights"], name, arrays) for name in files["weights"].tensors}
    table = [entry for entry in document["tensors"].values() if "name" in entry]
    return {e["name"]: read(files[file_of(e)], e["name"], arrays) for e in table}


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
    files = open_files(source, load_json(source / "recording.json"))
    if "weights" in files:
        shutil.copyfile(files["weights"].path, folder / "model.safetensors")
    for name, file in files.items():
        if name.startswith(MODEL_FILE):
            shutil.copyfile(file.path, folder / file.path.name)
    return folder


def transformers_model(recording: Path | str, dtype: Any = None, attention: str = "eager") -> Any:
    """The recorded model, built again by transformers; of the recorded dtype, or another."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from ..format.recording import TORCH_DTYPES

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
