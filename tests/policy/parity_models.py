"""The models that `parity_cases.py` describes, made by transformers (needs torch)."""

import copy

import numpy as np
import torch
import transformers
from policy.parity_families import Case

ROWS, LENGTH = 2, 64
SHARED_PREFIX = 24  # tokens that both rows begin with, so that a forest can hold them once


def draw_tokens(case: Case, seed: int, length: int = LENGTH) -> np.ndarray:
    """Token ids [ROWS, length]; the rows share their first SHARED_PREFIX tokens."""
    settings = case.text_config()
    count = min(settings["vocab_size"], settings.get("vocab_size_per_layer_input", 10**9))
    tokens = np.random.default_rng(seed).integers(0, count, (ROWS, length), dtype=np.int32)
    tokens[:, :SHARED_PREFIX] = tokens[0, :SHARED_PREFIX]
    return tokens


def build_model(case: Case, seed: int, more_layers: int = 0, rounded: bool = False):
    """The model of a case in float32, every weight and buffer drawn at random.

    Args:
      more_layers: layers on top of the case's own.
      rounded: weights of bfloat16 precision (stored as float32, they compress to half).
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # of an image encoder, whose weights are left as they come
        model = _class(case)(_config(case, case.text_config(more_layers))).eval()
    generator = np.random.default_rng(seed)
    with torch.no_grad():
        for name, tensor in sorted(named_tensors(model).items()):
            values = torch.tensor(_draw(generator, name, tensor), dtype=torch.float32)
            tensor.copy_(values.bfloat16().float() if rounded else values)
    return model


def named_tensors(model) -> dict:
    """Parameters and saved buffers by name, those of an image encoder apart, ties once."""
    saved = model.state_dict()
    found = dict(model.named_parameters())
    found |= {name: buffer for name, buffer in model.named_buffers() if name in saved}
    return {name: tensor for name, tensor in found.items() if not _is_vision(name)}


def compute_logits(model, tokens: np.ndarray) -> np.ndarray:
    """Logits [rows, length, vocabulary] of rows of tokens, float32."""
    # Asking for hidden states turns off a shortcut of Gemma 4 that needs per-layer inputs.
    with torch.no_grad():
        ids = torch.tensor(tokens, dtype=torch.long)
        return model(ids, output_hidden_states=True).logits.float().numpy()


def reference_logits(model, tokens: np.ndarray) -> np.ndarray:
    """The same with products in float64, so that differences are those of the other side."""
    return compute_logits(copy.deepcopy(model).double(), tokens)


def without_quirk(model, case: Case, more_layers: int = 0):
    """The same weights in a model whose config lacks the quirk; None when no setting does so."""
    if not case.without:
        return None
    settings = {**case.text_config(more_layers), **copy.deepcopy(case.without)}
    plain = _class(case)(_config(case, settings)).eval()
    plain.load_state_dict(model.state_dict())
    return plain


def _class(case: Case):
    return getattr(transformers, case.architecture)


def _config(case: Case, settings: dict):
    config_class = _class(case).config_class
    settings = copy.deepcopy(settings)
    if not case.vision:
        return config_class(**settings, attn_implementation="eager", dtype="float32")
    return config_class(
        text_config=settings,
        vision_config=copy.deepcopy(case.vision),
        tie_word_embeddings=settings["tie_word_embeddings"],
        attn_implementation="eager",
        dtype="float32",
    )


def _is_vision(name: str) -> bool:
    return any(part in name for part in ("vision", "visual", "multi_modal", "audio"))


def _draw(generator: np.random.Generator, name: str, tensor) -> np.ndarray:
    """Values that every part of a layer shows in the logits with.

    Matrices keep the size of what passes them; norms, biases and scalars stand off their defaults.
    """
    values = generator.normal(size=tuple(tensor.shape))
    start = tensor.detach().numpy()
    if name.endswith("layer_scalar"):
        return generator.uniform(0.6, 1.3, tuple(tensor.shape))
    if name.endswith(("A_log", "dt_bias")):
        return 0.7 * values
    if name.endswith("bias"):
        return 0.3 * values
    if "embed" in name:
        return 0.3 * values
    if tensor.ndim == 1:
        # The norms of Gemma 3 and Qwen3.5 start at zero and add one: the start tells which.
        # Smaller queries and keys soften an attention without scale, which amplifies rounding.
        shift = -0.4 if name.endswith(("q_norm.weight", "k_norm.weight")) else 0.0
        return start + shift + 0.3 * values
    width = start[0].size
    return values * width**-0.5
