"""Writes golden_peft/: a tiny Llama, an adapter that the peft library wrote, and its logits.

python tests/policy/make_golden_peft.py      # needs torch and peft
"""

import shutil
import tempfile
from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).with_name("golden_peft")
TOKENS = np.array([[3, 17, 0, 9, 30, 30, 5, 21, 12]])


def tiny_llama(seed: int = 0):
    """A random transformers model with wide logits: 3 layers, shared key heads, 31 ids."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=31,
        hidden_size=16,
        intermediate_size=20,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    return LlamaForCausalLM(config).eval()


def adapted(model, seed: int = 1, **options):
    """The model inside peft, every adapter matrix random so that it changes the logits."""
    import torch
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    settings = {"r": 3, "lora_alpha": 5, "lora_dropout": 0.05, "task_type": "CAUSAL_LM"}
    wrapped = get_peft_model(model, LoraConfig(**{**settings, **options})).eval()
    for name, parameter in wrapped.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    return wrapped


def logits_of(model, tokens: np.ndarray = TOKENS) -> np.ndarray:
    """float32 [B, T, V]."""
    import torch

    with torch.no_grad():
        return model(torch.tensor(tokens)).logits.numpy()


def main() -> None:
    """Replaces the directory."""
    from safetensors.numpy import save_file

    shutil.rmtree(GOLDEN, ignore_errors=True)
    model = tiny_llama()
    model.save_pretrained(GOLDEN / "base")
    base = logits_of(model)
    wrapped = adapted(model, target_modules=["q_proj", "v_proj", "down_proj"])
    wrapped.peft_config["default"].base_model_name_or_path = "tiny-llama"
    with tempfile.TemporaryDirectory() as directory:
        wrapped.save_pretrained(directory)
        (GOLDEN / "adapter").mkdir()
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            shutil.copy(Path(directory) / name, GOLDEN / "adapter" / name)
    expected = {"tokens": TOKENS, "base": base, "adapted": logits_of(wrapped)}
    save_file(expected, str(GOLDEN / "logits.safetensors"))


if __name__ == "__main__":
    main()
