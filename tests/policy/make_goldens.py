"""Writes `golden/<case>/` for every case of `parity_cases.py` (needs torch, a few minutes).

    python tests/policy/make_goldens.py [case ...]

Each directory is a checkpoint as transformers saves it (config.json, model.safetensors) and
logits.safetensors with `tokens` [2, 64] and the `logits` [2, 64, V] of transformers, its products
in float64. Before anything is written, every tensor and every setting that a case is about is
changed in turn, and the logits have to follow: a golden file that cannot show a mistake is refused.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
import transformers
from policy.parity_cases import CASES
from policy.parity_models import (
    build_model,
    compute_logits,
    draw_tokens,
    named_tensors,
    reference_logits,
    without_quirk,
)
from safetensors.numpy import save_file

GOLDEN = Path(__file__).with_name("golden")
SEED = 5  # of those tried, the one whose models amplify rounding least
# Twenty times what the tests allow between the two implementations.
SHOWS = 2e-3


def check_dependence(model, tokens, logits) -> None:
    """Moves one tensor at a time by about a tenth; raises where the logits stay."""
    generator = torch.Generator().manual_seed(SEED)
    layers = model.config.get_text_config().num_hidden_layers
    for name, tensor in named_tensors(model).items():
        if name.endswith(f"layers.{layers - 1}.layer_scalar"):
            continue  # the norm that follows takes a common factor out again
        kept = tensor.detach().clone()
        with torch.no_grad():
            tensor.add_(0.1 * kept.abs().mean() * torch.randn(kept.shape, generator=generator))
        change = np.abs(compute_logits(model, tokens) - logits).max()
        with torch.no_grad():
            tensor.copy_(kept)
        if change < SHOWS:
            raise ValueError(f"{name} moves the logits by {change:.1e} alone, below {SHOWS}")


def write_golden(name: str) -> int:
    """Makes one directory, whole or not at all; returns its bytes."""
    case = CASES[name]
    model, tokens = build_model(case, SEED, rounded=True), draw_tokens(case, SEED)
    logits = compute_logits(model, tokens)
    check_dependence(model, tokens, logits)
    plain = without_quirk(model, case)
    if plain is not None:
        change = np.abs(compute_logits(plain, tokens) - logits).max()
        if change < 10 * SHOWS:
            raise ValueError(f"{case.without} moves the logits by {change:.1e} alone")
    GOLDEN.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=GOLDEN, prefix=".") as folder:
        staging = Path(folder) / name
        model.save_pretrained(staging)
        (staging / "generation_config.json").unlink(missing_ok=True)
        kept = {"tokens": tokens, "logits": reference_logits(model, tokens)}
        save_file(kept, staging / "logits.safetensors")
        shutil.rmtree(GOLDEN / name, ignore_errors=True)
        os.replace(staging, GOLDEN / name)
    return sum(file.stat().st_size for file in (GOLDEN / name).iterdir())


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    total = 0
    for name in names or [name for name, case in CASES.items() if case.kept]:
        size = write_golden(name)
        total += size
        print(f"{name}: {size // 1000} kB", flush=True)
    print(f"{total / 1e6:.2f} MB")


if __name__ == "__main__":
    main(sys.argv[1:])
