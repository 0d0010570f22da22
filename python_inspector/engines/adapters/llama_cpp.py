"""llama.cpp, by llama-cpp-python's bindings: its C interface and its callback on every tensor."""

from __future__ import annotations

import ctypes
import tempfile
from pathlib import Path
from typing import Any

import llama_cpp as cpp
import numpy as np

from ..steps import Step
from ..weights import config_of
from . import gguf_file
from .engine import Engine, require

PLACES = {  # the scaled embedding comes after the other
    "embd": "model.embed_tokens", "inp_embd": "model.embed_tokens",
    "inp_scaled": "model.embed_tokens", "result_norm": "model.norm",
}  # fmt: skip
F32, F16 = 0, 1  # ggml_type
FLASH_OFF = 0
_ggml = ctypes.CDLL(str(Path(cpp.__file__).parent / "lib" / "libggml-base.so"))
_ggml.ggml_get_name.restype = ctypes.c_char_p
_ggml.ggml_get_data.restype = ctypes.c_void_p
_ggml.ggml_nelements.restype = ctypes.c_int64
for _function in (_ggml.ggml_get_name, _ggml.ggml_get_data, _ggml.ggml_nelements):
    _function.argtypes = [ctypes.c_void_p]


@cpp.llama_log_callback
def _silent(_level: int, _text: bytes, _data: Any) -> None:
    """It would tell of every tensor."""


cpp.llama_log_set(_silent, ctypes.c_void_p(0))


class Context:
    """One sequence at a time on a model; layers are taken as they are computed."""

    def __init__(self, path: Path, hf: dict[str, Any], cache: int, threads: int = 1) -> None:
        self.channels, self.vocabulary = hf["hidden_size"], hf["vocab_size"]
        self.layers = hf["num_hidden_layers"]
        self.taken: dict[str, Any] = {}
        settings = cpp.llama_model_default_params()
        settings.n_gpu_layers = 0
        self.model = cpp.llama_model_load_from_file(str(path).encode(), settings)
        require(bool(self.model), f"llama.cpp does not load {path}")
        self._callback = cpp.ggml_backend_sched_eval_callback(self._see)
        params = cpp.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = hf["max_position_embeddings"]
        params.n_threads = params.n_threads_batch = threads
        params.type_k = params.type_v = cache
        params.flash_attn_type = FLASH_OFF
        params.cb_eval = self._callback
        self.context = cpp.llama_init_from_model(self.model, params)
        require(bool(self.context), "llama.cpp makes no context of it")

    def __del__(self) -> None:
        if getattr(self, "context", None):
            cpp.llama_free(self.context)
        if getattr(self, "model", None):
            cpp.llama_model_free(self.model)

    def _see(self, tensor: Any, ask: bool, _data: Any) -> bool:
        name = _ggml.ggml_get_name(tensor).decode()
        place = self._place(name)
        if ask or not place:
            return bool(place)
        count = _ggml.ggml_nelements(tensor)
        values = (ctypes.c_float * count).from_address(_ggml.ggml_get_data(tensor))
        self.taken[place] = np.array(values, np.float32).reshape(1, -1, self.channels)
        return True

    def _place(self, name: str) -> str:
        if name.startswith("l_out-"):
            return f"model.layers.{name.removeprefix('l_out-')}"
        return PLACES.get(name, "")

    def clear(self) -> None:
        cpp.llama_memory_clear(cpp.llama_get_memory(self.context), True)

    def decode(self, ids: list[int], position: int) -> dict[str, Any]:
        """Logits of all tokens, and the layers."""
        self.taken = {}
        batch = cpp.llama_batch_init(len(ids), 0, 1)
        try:
            batch.n_tokens = len(ids)
            for i, token in enumerate(ids):
                batch.token[i], batch.pos[i] = token, position + i
                batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, 0, True
            code = cpp.llama_decode(self.context, batch)
            if code != 0:
                raise RuntimeError(f"llama_decode gave {code}")
        finally:
            cpp.llama_batch_free(batch)
        rows = [
            np.ctypeslib.as_array(cpp.llama_get_logits_ith(self.context, i), (self.vocabulary,))
            for i in range(len(ids))
        ]
        return {"logits": np.stack(rows)[None].copy(), **self.taken}


def engine(recording: Path | str, cache: int = F32) -> Engine:
    """`cache`: the dtype of keys and values; its own default is F16."""
    hf = config_of(recording)
    folder = tempfile.TemporaryDirectory(prefix="plumbline-gguf-")
    path = Path(folder.name) / "model.gguf"
    notes = gguf_file.write(recording, path)
    context = Context(path, hf, cache)
    folder.cleanup()  # the model is mapped by now

    def prefill(ids: Any) -> Any:
        context.clear()
        return context.decode(ids[0].tolist(), 0)

    def cached(ids: Any, step: Step) -> Any:
        if step.first:
            context.clear()
        return context.decode(ids[0].tolist(), step.position)

    told = tuple(f"not in the file: {each}" for each in notes)
    return Engine("llama-cpp-python", {"prefill": prefill, "cache": cached}, True, told)
