"""Whole models from a folder: the harness against transformers, which made the folder."""

from __future__ import annotations

import json
from pathlib import Path

import models
import pytest
import torch

from python_inspector import record, tiny
from python_inspector.format.validate import validate
from python_inspector.models.inputs import RunPlan, random_ids, run_model
from python_inspector.taps.options import Proof

LLAMAS = ["llama-a1", "llama-a2-mqa", "llama-a2-mha"]
ROPES = [
    f"llama-a3-{kind}"
    for kind in (
        "linear",
        "llama3",
        "yarn",
        "yarn-exact",
        "yarn-long",
        "yarn-mscale",
        "longrope",
        "dynamic",
    )
]
GEMMAS = ["gemma2-a4", "gemma2-a5-no-caps", "gemma2-a5-c48"]
ZAMBAS = ["zamba2-a6", "zamba2-a7", "zamba2-a8"]
TYPES = sorted(tiny.FIRST_OF_TYPE.values())
"""One of each model_type."""
EVERY = [
    *sorted({*LLAMAS, *ROPES, *GEMMAS, *ZAMBAS, *TYPES, "phi3-b4-longrope"}),
    *models.FURTHER,
]

# As the gates of blocks: float32 sums in another order than the reference's.
LIMIT = 4.0
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
BLIND = 8  # the harness's exit code where nothing failed, but not every feature can be seen


def test_the_table_of_decoders_is_that_of_the_harness() -> None:
    listed = models.run("list", "--models")
    assert listed.stdout == (models.ROOT / "python_inspector/data/decoders.json").read_text()


@pytest.mark.parametrize("name", EVERY)
def test_logits_agree_in_float32(name: str, tmp_path: Path) -> None:
    saved = models.save(name, tmp_path / "model")
    rows = models.tokens(saved.vocabulary, 19, rows=2)
    truth = models.oracle(saved.model, rows)
    own = models.error(models.reference(saved.model, rows), truth)
    found = models.error(models.forward(saved.folder, rows, tmp_path), truth)
    assert found <= LIMIT * own


@pytest.mark.parametrize("name", [*TYPES, "llama-a3-longrope", *ZAMBAS[1:]])
def test_logits_agree_in_float64(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = models.save(name, tmp_path / "model")
    rows = models.tokens(saved.vocabulary, 19)
    models.refine_frequencies(saved.model)
    models.round_longrope(monkeypatch)
    truth = models.oracle(saved.model, rows)
    exact = models.forward(saved.folder, rows, tmp_path, device="oracle")
    assert models.error(exact, truth) <= 1e-11


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", [*TYPES, "llama-a2-mqa", "gemma2-a5-c48", *ZAMBAS[1:]])
def test_logits_agree_in_16_bits(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    saved = models.save(name, tmp_path / "model", dtype)
    rows = models.tokens(saved.vocabulary, 19, rows=2)
    truth, result = models.oracle(saved.model, rows), models.reference(saved.model, rows)
    own = models.error(result, truth)
    composed = models.forward(saved.folder, rows, tmp_path, "--no-fuse")
    assert models.error(composed, truth) <= 1.5 * own
    if dtype == torch.bfloat16:  # the same rounding points: mostly the same bits
        assert models.error(composed, result) <= 0.5 * own
    fused = models.forward(saved.folder, rows, tmp_path)
    assert models.error(fused, truth) <= 1.5 * own


@pytest.mark.parametrize("chunk", [1, 4, 7])
@pytest.mark.parametrize("name", [*TYPES, ZAMBAS[1], *models.FURTHER])
def test_cached_calls_give_what_one_pass_gives(name: str, chunk: int, tmp_path: Path) -> None:
    saved = models.save(name, tmp_path / "model")
    rows = models.tokens(saved.vocabulary, 23, rows=2)
    truth = models.oracle(saved.model, rows)
    own = models.error(models.reference(saved.model, rows), truth)
    found = models.forward(saved.folder, rows, tmp_path, "--chunk", str(chunk))
    assert models.error(found, truth) <= LIMIT * own


@torch.no_grad()
@pytest.mark.parametrize("name", ["llama-a3-longrope", "llama-a3-dynamic", "phi3-b4-longrope"])
def test_frequencies_follow_the_length_as_in_transformers(name: str, tmp_path: Path) -> None:
    """Cached calls are not one pass: stored keys keep the frequencies of their time."""
    saved = models.save(name, tmp_path / "model")
    rows = models.tokens(saved.vocabulary, 14)
    found = models.forward(saved.folder, rows, tmp_path, "--chunk", "3")
    expected = models.cached(saved.model, rows, 3)
    assert models.error(found, expected) < 1e-5
    assert models.error(models.reference(saved.model, rows), expected) > 1e-3


@pytest.mark.parametrize("chunk", [1, 4, 7])
def test_only_sequences_clamp_their_time_steps(chunk: int, tmp_path: Path) -> None:
    """A single token behind others does not; neither may its first one be a step."""
    saved = models.save("zamba2-a8", tmp_path / "model")
    rows = models.tokens(saved.vocabulary, 15, rows=2)
    found = models.forward(saved.folder, rows, tmp_path, "--chunk", str(chunk))
    expected = models.cached(saved.model, rows, chunk)
    assert models.error(found, expected) < 1e-5
    if chunk == 1:
        assert models.error(models.reference(saved.model, rows), expected) > 1e-3


@pytest.mark.parametrize("name", ZAMBAS)
def test_steps_round_as_in_transformers(name: str, tmp_path: Path) -> None:
    saved = models.save(name, tmp_path / "model", torch.bfloat16)
    rows = models.tokens(saved.vocabulary, 19, rows=2)
    own = models.error(models.reference(saved.model, rows), models.oracle(saved.model, rows))
    found = models.forward(saved.folder, rows, tmp_path, "--chunk", "1", "--no-fuse")
    assert models.error(found, models.cached(saved.model, rows, 1)) <= 0.5 * own


@torch.no_grad()
@pytest.mark.parametrize("name", [name for name in EVERY if name != "phi3-b4-longrope"])
def test_greedy_tokens_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    saved = models.save(name, tmp_path / "model")
    prompt = models.tokens(saved.vocabulary, 5)[0]
    expected = saved.model.generate(
        torch.tensor([prompt]),
        max_new_tokens=64,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    found = models.generated(saved.folder, prompt, tmp_path, "--max-new", "64", "--device", "cpu")
    assert found == expected[0, len(prompt) :].tolist()


@torch.no_grad()
@pytest.mark.parametrize("device", ["cpu", "emu:64"])
def test_generation_reads_all_again_where_the_frequencies_of_phi3_change(
    device: str, tmp_path: Path
) -> None:
    """As its prepare_inputs_for_generation() means it: that of transformers 5.24 drops the cache
    there, and then gives the model the last token alone."""
    saved = models.save("phi3-b4-longrope", tmp_path / "model")
    prompt = models.tokens(saved.vocabulary, 5)[0]
    row = list(prompt)
    for _ in range(32):
        row.append(int(models.reference(saved.model, [row])[0, -1].argmax()))
    found = models.generated(saved.folder, prompt, tmp_path, "--max-new", "32", "--device", device)
    assert found == row[len(prompt) :]


@pytest.mark.sampled
@torch.no_grad()
@pytest.mark.parametrize("name", [*TYPES, *ZAMBAS[1:]])
def test_an_emulated_gpu_gives_the_same(name: str, tmp_path: Path) -> None:
    saved = models.save(name, tmp_path / "model")
    rows = models.tokens(saved.vocabulary, 19)
    truth = models.oracle(saved.model, rows)
    own = models.error(models.reference(saved.model, rows), truth)
    options = ("--chunk", "7")
    found = models.forward(saved.folder, rows, tmp_path, *options, device="emu:64")
    assert models.error(found, truth) <= LIMIT * own
    greedy = [
        models.generated(saved.folder, rows[0], tmp_path, "--max-new", "64", "--device", device)
        for device in ("cpu", "emu:64")
    ]
    assert greedy[0] == greedy[1]


def different_lengths(saved: models.Saved) -> list[list[int]]:
    rows = models.tokens(saved.vocabulary, 9, 3)
    return [rows[0][:4], rows[1], rows[2][:1]]


PADDED = [*TYPES, "llama-a3-dynamic", *ZAMBAS[1:]]


@pytest.mark.sampled
@torch.no_grad()
@pytest.mark.parametrize("name", PADDED)
@pytest.mark.parametrize("device", ["cpu", "emu:64"])
def test_sequences_of_different_lengths_go_on_as_in_transformers(
    name: str, device: str, tmp_path: Path
) -> None:
    saved = models.save(name, tmp_path / "model")
    prompts = different_lengths(saved)
    given = models.padded(prompts)
    made = 32
    options = {"max_new_tokens": made, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    expected = saved.model.generate(**given, **options)
    found = models.generated_rows(
        saved.folder, prompts, tmp_path, "--max-new", str(made), "--device", device
    )
    assert found == expected[:, given["input_ids"].shape[1] :].tolist()


@torch.no_grad()
@pytest.mark.parametrize("chunk", [0, 3])
@pytest.mark.parametrize("name", PADDED)
def test_padding_changes_no_logits(name: str, chunk: int, tmp_path: Path) -> None:
    """Against transformers with its mask and positions, and, but for biases, against no padding."""
    saved = models.save(name, tmp_path / "model")
    prompts = different_lengths(saved)
    given = models.padded(prompts)
    real = given["attention_mask"].bool()
    positions = (given["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    expected = saved.model(**given, position_ids=positions, use_cache=False).logits.double()
    found = models.forward(saved.folder, prompts, tmp_path, "--chunk", str(chunk))
    if not (chunk and name == "llama-a3-dynamic"):  # whose frequencies follow the length
        assert models.error(found[real], expected[real]) < 1e-5
    if name != "zamba2-a8":  # whose convolution sees the bias of its projection in padding
        alone = models.forward(saved.folder, prompts[:1], tmp_path)[0]
        assert models.error(found[0, -4:], alone) < 1e-5


def test_sampling_is_seeded_and_honours_top_k(tmp_path: Path) -> None:
    saved = models.save("llama-a1", tmp_path / "model")
    prompt = models.tokens(saved.vocabulary, 5)[0]

    def sample(*options: str) -> list[int]:
        fixed = ("--device", "cpu", "--max-new", "20", "--temperature", "3")
        return models.generated(saved.folder, prompt, tmp_path, *fixed, *options)

    assert sample("--seed", "1") == sample("--seed", "1")
    assert sample("--seed", "1") != sample("--seed", "2")
    greedy = models.generated(saved.folder, prompt, tmp_path, "--max-new", "20", "--device", "cpu")
    assert sample("--top-k", "1") == greedy
    assert sample("--top-p", "0") == greedy
    assert sample("--seed", "1") != greedy


def test_generation_ends_at_a_stop_token(tmp_path: Path) -> None:
    saved = models.save("llama-a1", tmp_path / "model")
    prompt = models.tokens(saved.vocabulary, 5)[0]
    free = models.generated(saved.folder, prompt, tmp_path, "--max-new", "12", "--device", "cpu")
    ids = ",".join(str(i) for i in prompt)
    stop = next(i for i in range(2, 12) if free[i] not in free[:i])
    done = models.run(
        "generate",
        *("--model", str(saved.folder), "--tokens", ids, "--device", "cpu"),
        *("--max-new", "12", "--stop", str(free[stop])),
    )
    assert done.returncode == 0, done.stderr
    assert [int(word) for word in done.stdout.split()] == free[: stop + 1]


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", TYPES)
def test_a_recording_from_seeds_is_replayed_by_block_and_as_a_chain(
    name: str, dtype: str, tmp_path: Path
) -> None:
    model = tiny.build(name, DTYPES[dtype])
    plan = RunPlan(random_ids(2, 12, 40), tokens=10, steps=2, cache="dynamic")
    with record(model, tmp_path / "r", proof=Proof(chained=True, spread=0)):
        run_model(model, plan)
    assert validate(tmp_path / "r") == []
    recording = json.loads((tmp_path / "r" / "recording.json").read_text())
    assert "module" not in {c["block"] for c in recording["checkpoints"]}
    done = models.run("--fixture", str(tmp_path / "r"), "--device", "cpu", "--mode", "both")
    assert done.returncode in (0, BLIND), done.stdout


@pytest.mark.parametrize(("seed", "gain"), [(tiny.DEFAULT_SEED, tiny.ZAMBA2_GAIN), (0, tiny.GAIN)])
def test_untied_blocks_in_a_chain(tmp_path: Path, seed: int, gain: float) -> None:
    """Larger weights also make a row that is ill conditioned: its error is in the recording's."""
    model = models.further("zamba2-untied", torch.bfloat16)
    tiny.load_weights(model, tiny.draw_weights(model, seed, gain=gain))
    plan = RunPlan(random_ids(2, 12, 40), tokens=10, steps=2, cache="dynamic")
    with record(model, tmp_path / "r", proof=Proof(chained=True, spread=0)):
        run_model(model, plan)
    done = models.run("--fixture", str(tmp_path / "r"), "--device", "cpu", "--mode", "both")
    assert done.returncode in (0, BLIND), done.stdout
