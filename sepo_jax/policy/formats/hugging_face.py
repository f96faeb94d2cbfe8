"""Policies from and to files: Hugging Face directories, hub models and GGUF files."""

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from safetensors.numpy import save_file

from sepo_jax.names import check_option, nearest
from sepo_jax.policy.config import DTYPES, ModelConfig
from sepo_jax.policy.formats.families import LOAD_OPTIONS, config_fields
from sepo_jax.policy.formats.families_export import hf_config
from sepo_jax.policy.formats.staging import staged, write_json
from sepo_jax.policy.formats.weights import (
    INDEX_FILE,
    SHARD_BYTES,
    SINGLE_FILE,
    VALUE_HEAD_FILE,
    TensorSource,
    directory_source,
    parameter_shapes,
    read_parameters,
    read_value_head,
    stored_dtype,
    write_tensors,
)
from sepo_jax.policy.lora import adapted_paths
from sepo_jax.policy.models import MODELS
from sepo_jax.policy.policy import Policy
from sepo_jax.policy.tokenizer import end_token_ids, load_tokenizer

_HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model")
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")
_HUB_TIMEOUT = 5  # seconds until the hub must answer


class Checkpoint(NamedTuple):
    """A model on disk, opened but not read.

    Attributes:
      where: directory or file, for errors.
      raw: content of config.json, or what it would be.
      tensors: the weights.
      value_head: file of a value head, or None.
      tokenizer: a function that gives the tokenizer.
      generation: content of generation_config.json, or {}.
    """

    where: Path
    raw: Mapping
    tensors: TensorSource
    value_head: Path | None
    tokenizer: Any
    generation: Mapping


def load(source, *, tokenizer=None, key=None, **options) -> tuple[Policy, dict]:
    """A policy and its parameters.

    Weights keep the dtypes of the checkpoint: bfloat16 stays bfloat16, and float32, float16 and
    quantised ones are float32. `config.param_dtype` is then that of most numbers; given as an
    option, it is the dtype of all.

    Args:
      source: a Hugging Face directory, of a text model or of a multimodal one (its text part is
        taken); a `.gguf` file; a hub id such as "Qwen/Qwen3-4B" or a name of `models.MODELS`,
        fetched unless it is on this machine; or a `ModelConfig`, for fresh parameters.
      tokenizer: instead of the checkpoint's own; False loads the weights alone. For a `ModelConfig`
        the tokenizer to go with it, or None.
      key: PRNG key of fresh parameters; `jax.random.key(0)` when None.
      **options: ModelConfig fields of choice (`compute_dtype`, `param_dtype`, `cache_dtype`,
        `remat`, `value_head`, `logits_budget`, `lora`); any field for a `ModelConfig`.

    Raises:
      FileNotFoundError: no such directory, config, weights, shard or tokenizer, or a hub model
        that cannot be fetched.
      ValueError: unknown architecture or option, unsupported setting or quantisation, damaged
        file, and tensors that are missing, unused or of the wrong shape, with file and tensor
        named.
    """
    if isinstance(source, ModelConfig):
        allowed = [field.name for field in dataclasses.fields(ModelConfig)]
        for name in options:
            check_option("ModelConfig field", name, allowed)
        policy = Policy(dataclasses.replace(source, **options), tokenizer or None)
        _check_targets(policy.config)
        return policy, policy.init(jax.random.key(0) if key is None else key)
    for name in options:
        check_option("load option", name, LOAD_OPTIONS)
    opened = _open(_locate(source))
    config = _model_config(opened, options)
    keep = "param_dtype" not in options
    if tokenizer is None:
        tokenizer = opened.tokenizer()
    policy = _policy(opened, config, tokenizer or None)
    _check_targets(config)
    params = read_parameters(config, opened.tensors, opened.where, keep_dtypes=keep)
    if config.value_head and opened.value_head is not None:
        read_value_head(params, opened.value_head)
    return policy, params


def _check_targets(config: ModelConfig) -> None:
    """Refuses adapters on projections that no layer has."""
    if config.lora is not None:
        adapted_paths(config, parameter_shapes(config))


def read_config(source, **options) -> ModelConfig:
    """The ModelConfig that `load` would give a directory or file, without reading weights.

    A directory without weights has the dtype its config.json names. Errors as in `load`.
    """
    path = Path(source).expanduser()
    if path.is_dir() and not any((path / name).is_file() for name in (SINGLE_FILE, INDEX_FILE)):
        raw = _read_json(path / "config.json")
        return _model_config(Checkpoint(path, raw, {}, None, None, {}), options)
    return _model_config(_open(_locate(source)), options)


def save_hf(
    directory, policy: Policy, params, *, overwrite: bool = False, shard_bytes: int = SHARD_BYTES
) -> Path:
    """Writes a directory that transformers and `load` open; whole or not at all.

    Holds config.json of the family's text model, model.safetensors (or shards and their index),
    generation_config.json with every end id, the tokenizer's files and, with a value head,
    value_head.safetensors. Weights keep the parameters' dtype.

    Args:
      overwrite: replace an existing directory (by a rename, at the end).
      shard_bytes: largest size of one weight file.

    Raises:
      FileExistsError: the directory exists and `overwrite` is False.
      ValueError: `params` do not belong to the policy's config or hold a LoRA adapter; a config
        that its family cannot express.
    """
    config = policy.config
    directory = Path(directory).expanduser()
    with staged(directory, overwrite=overwrite) as staging:
        ends = list(policy.end_ids) or None
        ids = {"bos_token_id": getattr(policy.tokenizer, "bos_token_id", None)}
        ids.update(eos_token_id=ends, pad_token_id=policy.pad_id)
        dtype = str(params["embed"]["embedding"].dtype)
        content = {**hf_config(config), "dtype": dtype, "torch_dtype": dtype, **ids}
        write_json(staging / "config.json", content)
        write_json(staging / "generation_config.json", {"do_sample": True, **ids})
        write_tensors(staging, config, params, shard_bytes)
        if config.value_head:
            head = {name: np.asarray(array) for name, array in params["value_head"].items()}
            save_file(head, str(staging / VALUE_HEAD_FILE))
        if policy.tokenizer is not None:
            policy.tokenizer.save_pretrained(str(staging))
    return directory


def _model_config(opened: Checkpoint, options: dict) -> ModelConfig:
    file = opened.where if opened.where.suffix == ".gguf" else opened.where / "config.json"
    fields = config_fields(opened.raw, file)
    if opened.tensors:
        dtype = stored_dtype(opened.tensors)
    else:
        dtype = opened.raw.get("dtype") or opened.raw.get("torch_dtype")
    fields.update(
        param_dtype=dtype if dtype in list(DTYPES) else "float32",  # a list: any type may be asked
        value_head=opened.value_head is not None,
    )
    try:
        ModelConfig(**fields)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    return ModelConfig(**{**fields, **options})


def _open(path: Path) -> Checkpoint:
    if path.suffix == ".gguf":
        from sepo_jax.policy.formats.gguf import open_gguf

        try:
            opened = open_gguf(path)
        except ImportError as error:  # without the gguf package
            raise ValueError(f"{path}: {error}") from error
        return Checkpoint(path, opened.config, opened.tensors, None, opened.tokenizer, {})
    raw = _read_json(path / "config.json")
    generation = _read_json(path / "generation_config.json", required=False)
    head = path / VALUE_HEAD_FILE
    return Checkpoint(
        path,
        raw,
        directory_source(path),
        head if head.is_file() else None,
        lambda: load_tokenizer(path),
        generation,
    )


def _policy(opened: Checkpoint, config: ModelConfig, tokenizer) -> Policy:
    ends = next((entry for entry in _end_entries(opened)), {})
    if tokenizer is None and not ends:
        return Policy(config)
    try:
        return Policy(config, tokenizer, end_token_ids(tokenizer, ends))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{opened.where}: {error}") from error


def _end_entries(opened: Checkpoint):
    """Contents that may name end ids, those that do, best first."""
    text = opened.raw.get("text_config")
    for entry in (opened.generation, opened.raw, text):
        if isinstance(entry, Mapping) and entry.get("eos_token_id") is not None:
            yield dict(entry)


def _locate(source) -> Path:
    """The directory or `.gguf` file that `source` means, fetched when it is a hub model."""
    path = Path(source).expanduser()
    if path.is_dir() or (path.suffix == ".gguf" and path.is_file()):
        return path
    if path.exists():
        raise ValueError(f"{path} is a file: a Hugging Face directory or a .gguf file is expected")
    if str(source) in MODELS:
        return _fetch(MODELS[str(source)].hub_id)
    hub_id = str(source).removesuffix("/")
    if path.suffix != ".gguf" and _HUB_ID.fullmatch(hub_id):
        return _fetch(hub_id)
    guess = nearest(str(source), MODELS)
    hint = f" Did you mean the model {guess!r}?" if guess else ""
    raise FileNotFoundError(f"no directory or .gguf file {str(source)!r} with a model in it.{hint}")


def _fetch(hub_id: str) -> Path:
    """Directory of a hub model: the copy on this machine when it is whole, else fetched."""
    from huggingface_hub import snapshot_download

    try:
        path = Path(snapshot_download(hub_id, local_files_only=True))
        if (path / "config.json").is_file():
            directory_source(path)
            return path
    except (OSError, ValueError):  # no copy, or part of one
        pass
    try:
        return Path(
            snapshot_download(
                hub_id,
                allow_patterns=list(_HUB_FILES),
                ignore_patterns=["*/*"],  # weights in other formats lie in folders
                etag_timeout=_HUB_TIMEOUT,
            )
        )
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise FileNotFoundError(
            f"{hub_id!r} is no directory here and could not be fetched from the hub ({reason}): "
            f"run `hf download {hub_id}` where there is a network, or give a directory"
        ) from None


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
