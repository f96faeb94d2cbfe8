"""Adapters from and to directories of the peft library, without needing that library.

A directory holds adapter_config.json and adapter_model.safetensors with, for every adapted module,
`lora_A.weight` [rank, in] and `lora_B.weight` [out, rank]; kernels here are [in, out], so both are
transposed, and layers of one kind are stacked on axis 0.
"""

import json
import re
from pathlib import Path

import jax
import numpy as np
from safetensors.numpy import save_file

from sepo_jax.names import check_option
from sepo_jax.policy.config import LoraConfig, ModelConfig
from sepo_jax.policy.formats.families_tensors import tensor_places, text_names
from sepo_jax.policy.formats.hugging_face import save_hf
from sepo_jax.policy.formats.staging import staged, write_json
from sepo_jax.policy.formats.weights import (
    all_finite,
    listed,
    parameter_shapes,
    safetensors_source,
)
from sepo_jax.policy.lora import LEAVES, PROJECTIONS, adapted_paths, attach, merge
from sepo_jax.policy.policy import Policy
from sepo_jax.policy.trees import leaves_by_path, part_at, put_at

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
FORMS = ("merged", "adapter")
_WRAPPER = "base_model.model."  # peft's own modules around the model
_DTYPES = ("float32", "float16", "bfloat16")
_MATRICES = {"lora_A.weight": "lora_a", "lora_B.weight": "lora_b"}
# Options of adapter_config.json that say nothing about the function computed.
_WITHOUT_EFFECT = (
    "task_type",
    "auto_mapping",
    "peft_version",
    "base_model_name_or_path",
    "revision",
    "inference_mode",
    "lora_dropout",
    "exclude_modules",
    "layers_pattern",
    "megatron_core",
    "qalora_group_size",
    "runtime_config",
    "ensure_weight_tying",
)
_READ = ("peft_type", "r", "lora_alpha", "use_rslora", "target_modules", "init_lora_weights")
# Starts that leave the base weights as they are; others change them while training.
_PLAIN_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")


def save_peft(
    directory,
    policy: Policy,
    adapter,
    base_name: str,
    *,
    decoder_path: str = "model",
    overwrite: bool = False,
) -> Path:
    """Writes an adapter that `peft.PeftModel.from_pretrained` opens; whole or not at all.

    Args:
      policy: with `config.lora`, the settings that the adapter was made with.
      base_name: directory or hub id of the model without adapter; recorded in the file.
      decoder_path: where the base model keeps its decoder; "model.language_model" for the
        multimodal classes of transformers.
      overwrite: replace an existing directory (by a rename, at the end).

    Raises:
      FileExistsError: the directory exists and `overwrite` is False.
      ValueError: the adapter is not the one that `config.lora` describes.
    """
    config = policy.config
    tensors, modules = _peft_tensors(config, adapter, decoder_path)
    lora = config.lora
    suffixes = sorted({re.sub(r"^layers\.\d+\.", "", module) for module in modules})
    if decoder_path == "model":
        targets = sorted({suffix.rpartition(".")[2] for suffix in suffixes})
    else:  # the other towers of such a model have modules of the same names
        inside = "|".join(re.escape(suffix) for suffix in suffixes)
        targets = rf"{re.escape(decoder_path)}\.layers\.\d+\.({inside})"
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base_name),
        "inference_mode": True,
        "r": lora.rank,
        "lora_alpha": int(lora.alpha) if float(lora.alpha).is_integer() else lora.alpha,
        "use_rslora": lora.rank_stabilised,
        "target_modules": targets,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
    }
    directory = Path(directory).expanduser()
    with staged(directory, overwrite=overwrite) as staging:
        save_file(tensors, str(staging / WEIGHTS_FILE), {"format": "pt"})
        write_json(staging / CONFIG_FILE, settings)
    return directory


def load_peft(directory, config: ModelConfig) -> tuple[LoraConfig, dict]:
    """The settings and the float32 adapter of a directory that peft or `save_peft` wrote.

    Use them as `dataclasses.replace(config, lora=settings)` and `attach(params, adapter)`. Decoders
    inside multimodal models are found (`model.language_model.layers...`), adapters of their other
    parts passed over. Dropout is not read: it is no part of the function.

    Raises:
      FileNotFoundError: no such directory or file.
      ValueError: an option that is not supported, named; a damaged file; tensors that are missing,
        unused or of the wrong shape, all named together.
    """
    directory = Path(directory).expanduser()
    settings = _read_settings(directory)
    file = directory / WEIGHTS_FILE
    if not file.is_file():
        raise FileNotFoundError(
            f"{directory} has no {WEIGHTS_FILE}; adapters of other formats are not read, save them "
            "with safe_serialization=True"
        )
    modules = _modules(config)
    named = _named_targets(settings, modules)
    stored = {name: tensor.read() for name, tensor in safetensors_source([file]).items()}
    found = _places_of(config, stored)
    present = {modules[module][0][-1] for module, _ in found.values() if module in modules}
    targets = tuple(name for name in PROJECTIONS if name in present | named)
    if not targets:
        raise ValueError(
            f"{file} adapts no projection of this model's layers; it holds "
            f"{', '.join(sorted(stored)[:5]) or 'nothing'}"
        )
    try:
        lora = LoraConfig(
            rank=settings["r"],
            alpha=float(settings["lora_alpha"]),
            targets=targets,
            rank_stabilised=bool(settings.get("use_rslora", False)),
        )
    except (ValueError, TypeError) as error:
        raise ValueError(f"{directory / CONFIG_FILE}: {error}") from error
    return lora, _stack(config, lora, modules, stored, found, file)


def export(
    directory,
    policy: Policy,
    params,
    adapter=None,
    *,
    form: str = "merged",
    base_name: str = "",
    overwrite: bool = False,
) -> Path:
    """Writes a policy for other programs.

    Args:
      params: without adapter leaves. adapter: of `config.lora`, or None.
      form: "merged" for a whole model directory (`save_hf`) with the adapter added to the weights,
        "adapter" for the adapter alone (`save_peft`, which records `base_name`).

    Raises:
      FileExistsError: the directory exists and `overwrite` is False.
      ValueError: an unknown form, or the form "adapter" without an adapter.
    """
    check_option("export form", form, FORMS)
    if form == "adapter":
        if adapter is None:
            raise ValueError("this policy has no adapter: export it with form='merged'")
        return save_peft(directory, policy, adapter, base_name, overwrite=overwrite)
    if adapter is not None:
        params = merge(policy.config, attach(params, adapter))
    return save_hf(directory, policy, params, overwrite=overwrite)


def _modules(config: ModelConfig) -> dict[str, tuple[tuple[str, ...], int]]:
    """Projections of the layers: "layers.3.self_attn.q_proj" -> (path of the module, row)."""
    modules = {}
    for name, place in tensor_places(config).items():
        *path, leaf = place.path
        if leaf == "kernel" and path[0] == "layers" and path[-1] in PROJECTIONS:
            module = name[name.index("layers.") :].removesuffix(".weight")
            modules[module] = tuple(path), place.row
    return modules


def _peft_tensors(config: ModelConfig, adapter, decoder_path: str):
    """Tensors by peft's names, and the modules they belong to."""
    shapes = parameter_shapes(config)
    paths = adapted_paths(config, shapes)
    attach(shapes, adapter)  # says where the adapter does not fit
    given = {path[:-1] for path in leaves_by_path(adapter)}
    ranks = {part_at(adapter, path)["lora_a"].shape[-1] for path in given}
    if given != set(paths) or ranks != {config.lora.rank}:
        odd = sorted(".".join(path) for path in given ^ set(paths))
        raise ValueError(
            f"the adapter is not the one of {config.lora}: rank {sorted(ranks)}, places in only "
            f"one of the two: {odd}"
        )
    tensors, modules = {}, []
    for module, (path, row) in _modules(config).items():
        if path not in given:
            continue
        modules.append(module)
        for suffix, leaf in _MATRICES.items():
            matrix = np.asarray(part_at(adapter, path)[leaf][row])
            name = f"{_WRAPPER}{decoder_path}.{module}.{suffix}"
            tensors[name] = np.ascontiguousarray(matrix.T)
    return tensors, modules


def _stack(config: ModelConfig, lora: LoraConfig, modules, stored, found, file: Path) -> dict:
    """The adapter of tensors `stored`, after every complaint about them."""
    shapes = parameter_shapes(config)
    expected = {
        (module, leaf): (path, row)
        for module, (path, row) in modules.items()
        if path[-1] in lora.targets
        for leaf in LEAVES
    }
    problems = [
        f"missing {leaf} of {module}" for module, leaf in expected.keys() - set(found.values())
    ]
    leaves: dict[tuple[str, ...], np.ndarray] = {}
    for name, place in found.items():
        if place not in expected:
            problems.append(f"unused tensor {name}")
            continue
        path, row = expected[place]
        stack, *ends = part_at(shapes, path)["kernel"].shape
        down = place[1] == "lora_a"
        shape = (ends[0], lora.rank) if down else (lora.rank, ends[1])
        matrix = stored[name]
        if matrix.shape != shape[::-1]:
            problems.append(
                f"tensor {name} has shape {matrix.shape}, rank and config ask for {shape[::-1]}"
            )
            continue
        if matrix.dtype.name not in _DTYPES:
            problems.append(f"tensor {name} is stored as {matrix.dtype}, not as {_DTYPES}")
            continue
        if not all_finite(matrix):
            problems.append(f"tensor {name} holds infinite numbers or NaN")
        leaf = leaves.setdefault((*path, place[1]), np.zeros((stack, *shape), np.float32))
        leaf[row] = matrix.T
    if problems:
        raise ValueError(f"{file} does not fit the model:{listed(sorted(problems))}")
    adapter: dict = {}
    for path, leaf in leaves.items():
        put_at(adapter, path, jax.numpy.asarray(leaf))
    return adapter


def _places_of(config: ModelConfig, names) -> dict[str, tuple[str, str]]:
    """("layers.3.self_attn.q_proj", "lora_a") of every tensor of the text decoder, by its name.

    Tensors of other parts of a multimodal model are left out; what cannot be told keeps its name.
    """
    inside = {name.removeprefix(_WRAPPER): name for name in names if name.startswith(_WRAPPER)}
    places = {name: (name, "") for name in names if not name.startswith(_WRAPPER)}
    for name, plain in text_names(config, inside).items():
        match = re.fullmatch(r"model\.(layers\.\d+\..+)\.(lora_[AB]\.weight)", plain)
        places[inside[name]] = (match[1], _MATRICES[match[2]]) if match else (inside[name], "")
    return places


def _named_targets(settings: dict, modules) -> set[str]:
    """Own names of the projections that a list of target modules asks for."""
    targets = settings.get("target_modules")
    if not isinstance(targets, list):
        return set()  # "all-linear" or a pattern: the tensors say what it matched
    return {
        path[-1]
        for module, (path, _) in modules.items()
        if any(module == target or module.endswith(f".{target}") for target in targets)
    }


def _read_settings(directory: Path) -> dict:
    file = directory / CONFIG_FILE
    if not file.is_file():
        raise FileNotFoundError(f"{directory} has no {CONFIG_FILE}: a peft directory is expected")
    try:
        settings = dict(json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{file} is no JSON object: {error}") from error
    if settings.get("peft_type") != "LORA":
        raise ValueError(f"{file}: peft_type {settings.get('peft_type')!r}; only 'LORA' is read")
    absent = [name for name in ("r", "lora_alpha") if settings.get(name) is None]
    if absent:
        raise ValueError(f"{file} lacks {absent}")
    neutral = (None, False, "none", [], {})
    refused = {
        name: value
        for name, value in settings.items()
        if name not in (*_READ, *_WITHOUT_EFFECT) and value not in neutral
    }
    if settings.get("init_lora_weights") not in _PLAIN_STARTS:
        refused["init_lora_weights"] = settings["init_lora_weights"]
    if refused:
        shown = ", ".join(f"{name}={value!r}" for name, value in sorted(refused.items()))
        raise ValueError(
            f"{file}: these options are not supported: {shown}. Merge the adapter into its model "
            "with the peft library and load the result"
        )
    return settings
