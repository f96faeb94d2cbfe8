"""Policies from and to Hugging Face directories: config.json, safetensors, tokenizer files."""

import dataclasses
import json
import os
import shutil
import tempfile
from pathlib import Path

import jax
import numpy as np
from safetensors.numpy import save_file

from sepo_jax.names import check_option, unknown
from sepo_jax.policy.config import ModelConfig, RopeScaling
from sepo_jax.policy.policy import Policy
from sepo_jax.policy.tokenizer import end_token_ids, load_tokenizer
from sepo_jax.policy.weights import (
    SINGLE_FILE,
    VALUE_HEAD_FILE,
    checkpoint_tensors,
    read_parameters,
)

ARCHITECTURES = {"LlamaForCausalLM": "llama"}
# What a user may choose when loading; everything else is a fact of the checkpoint.
LOAD_OPTIONS = (
    "compute_dtype",
    "param_dtype",
    "cache_dtype",
    "remat",
    "value_head",
    "logits_budget",
)
_FIELDS = {  # ModelConfig field: key of config.json
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "rms_norm_epsilon": "rms_norm_eps",
    "max_positions": "max_position_embeddings",
}


def load(source, *, tokenizer=None, key=None, **options) -> tuple[Policy, dict]:
    """A policy and its parameters.

    Args:
      source: a Hugging Face directory; a hub id whose files are already on this machine (nothing
        is fetched); or a `ModelConfig`, for fresh parameters.
      tokenizer: instead of the directory's own; False loads the weights alone. For a `ModelConfig`
        the tokenizer to go with it, or None.
      key: PRNG key of fresh parameters; `jax.random.key(0)` when None.
      **options: ModelConfig fields of choice (`compute_dtype`, `param_dtype`, `cache_dtype`,
        `remat`, `value_head`, `logits_budget`); any field for a `ModelConfig`.

    Raises:
      FileNotFoundError: no such directory, config, weights, shard or tokenizer.
      ValueError: unknown architecture or option, unsupported setting, damaged file, and tensors
        that are missing, unused or of the wrong shape, with file and tensor named.
    """
    if isinstance(source, ModelConfig):
        allowed = [field.name for field in dataclasses.fields(ModelConfig)]
        for name in options:
            check_option("ModelConfig field", name, allowed)
        policy = Policy(dataclasses.replace(source, **options), tokenizer or None)
        return policy, policy.init(jax.random.key(0) if key is None else key)
    for name in options:
        check_option("load option", name, LOAD_OPTIONS)
    directory = _directory(source)
    config = read_config(directory, **options)
    params = read_parameters(config, directory)
    if tokenizer is None:
        tokenizer = load_tokenizer(directory)
    tokenizer = tokenizer or None
    generation = _read_json(directory / "generation_config.json", required=False)
    raw = _read_json(directory / "config.json")
    ends = generation if generation.get("eos_token_id") is not None else raw
    if tokenizer is None and ends.get("eos_token_id") is None:
        return Policy(config), params
    return Policy(config, tokenizer, end_token_ids(tokenizer, ends)), params


def read_config(directory, **options) -> ModelConfig:
    """The ModelConfig that a directory's config.json describes; errors as in `load`."""
    directory = Path(directory)
    raw = _read_json(directory / "config.json")
    architectures = raw.get("architectures") or [None]
    if architectures[0] not in ARCHITECTURES:
        raise ValueError(
            f"{directory / 'config.json'}: "
            + str(unknown("architecture", architectures[0], ARCHITECTURES))
        )
    absent = [name for name in _FIELDS.values() if raw.get(name) is None]
    if absent:
        raise ValueError(f"{directory / 'config.json'} lacks {absent}")
    for name, supported in (("hidden_act", "silu"), ("mlp_bias", False)):
        if raw.get(name, supported) != supported:
            raise ValueError(
                f"{directory / 'config.json'}: {name}={raw[name]!r} is not supported, only "
                f"{supported!r}"
            )
    # transformers 5 keeps both rotary settings in one entry, earlier versions apart.
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    theta = rope.get("rope_theta", raw.get("rope_theta", 10_000.0))
    fields = {own: raw[name] for own, name in _FIELDS.items()}
    fields.update(
        num_kv_heads=raw.get("num_key_value_heads") or raw["num_attention_heads"],
        head_dim=raw.get("head_dim"),
        rope_theta=float(theta),
        rope_scaling=None if kind == "default" else RopeScaling.from_mapping(rope),
        tie_embeddings=bool(raw.get("tie_word_embeddings", False)),
        attention_bias=bool(raw.get("attention_bias", False)),
        value_head=(directory / VALUE_HEAD_FILE).is_file(),
        family=ARCHITECTURES[architectures[0]],
    )
    return ModelConfig(**{**fields, **options})


def save_hf(directory, policy: Policy, params, *, overwrite: bool = False) -> Path:
    """Writes a directory that transformers and `load` open; whole or not at all.

    Holds config.json, model.safetensors, generation_config.json with every end id, the tokenizer's
    files and, with a value head, value_head.safetensors. Weights keep the parameters' dtype.

    Args:
      overwrite: replace an existing directory (by a rename, at the end).

    Raises:
      FileExistsError: the directory exists and `overwrite` is False.
    """
    directory = Path(directory)
    if directory.exists() and not overwrite:
        raise FileExistsError(f"{directory} exists: choose another name or pass overwrite=True")
    directory.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        _write_files(staging, policy, params)
        staging.chmod(0o755)
        if directory.exists():
            retired = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
            os.replace(directory, retired / "old")
            try:
                os.replace(staging, directory)
            except OSError:
                os.replace(retired / "old", directory)
                raise
            finally:
                shutil.rmtree(retired)
        else:
            os.replace(staging, directory)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return directory


def _write_files(staging: Path, policy: Policy, params) -> None:
    config = policy.config
    metadata = {"format": "pt"}  # transformers refuses files without it
    save_file(checkpoint_tensors(config, params), str(staging / SINGLE_FILE), metadata)
    if config.value_head:
        head = {name: np.asarray(array) for name, array in params["value_head"].items()}
        save_file(head, str(staging / VALUE_HEAD_FILE))
    if policy.tokenizer is not None:
        policy.tokenizer.save_pretrained(str(staging))
    ends = list(policy.end_ids) or None
    ids = {"bos_token_id": getattr(policy.tokenizer, "bos_token_id", None)}
    ids.update(eos_token_id=ends, pad_token_id=policy.pad_id)
    _write_json(staging / "generation_config.json", {"do_sample": True, **ids})
    _write_json(staging / "config.json", {**hf_config(config), **ids})


def hf_config(config: ModelConfig) -> dict:
    """config.json of a ModelConfig, readable by transformers 4 and 5."""
    (architecture,) = (name for name, family in ARCHITECTURES.items() if family == config.family)
    scaling = config.rope_scaling.to_mapping() if config.rope_scaling else None
    return {
        "architectures": [architecture],
        "model_type": "llama",
        "hidden_act": "silu",
        "mlp_bias": False,
        **{name: getattr(config, own) for own, name in _FIELDS.items()},
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rope_theta": config.rope_theta,
        "rope_scaling": scaling,
        "rope_parameters": {
            "rope_type": "default",
            **(scaling or {}),
            "rope_theta": config.rope_theta,
        },
        "tie_word_embeddings": config.tie_embeddings,
        "attention_bias": config.attention_bias,
        "torch_dtype": config.param_dtype,
        "dtype": config.param_dtype,
        "use_cache": True,
    }


def _directory(source) -> Path:
    path = Path(source)
    if path.is_dir():
        return path
    if path.exists():
        raise ValueError(f"{path} is a file: a Hugging Face directory is expected")
    if str(source).count("/") == 1 and not str(source).startswith((".", "/", "~")):
        from huggingface_hub import snapshot_download

        try:
            return Path(snapshot_download(str(source), local_files_only=True))
        except Exception as error:
            raise FileNotFoundError(
                f"no directory {source!r}, and no copy of a hub model of that name on this "
                f"machine: fetch it with `hf download {source}` and try again"
            ) from error
    raise FileNotFoundError(f"no directory {source!r} with a model in it")


def _read_json(path: Path, required: bool = True) -> dict:
    if not path.is_file():
        if required:
            raise FileNotFoundError(f"{path} is absent: a model directory needs it")
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold an object, not {type(content).__name__}")
    return content


def _write_json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
