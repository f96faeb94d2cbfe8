"""What `benchmark_step.py` compares with, each in an environment of its own that it must find."""

import dataclasses
import itertools
import subprocess
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Peer:
    """Another package to compare with, in an environment of its own.

    Attributes:
      title: in the table. script: its process. needs: modules that its Python must import.
      installs: what pip is told to install, one command each.
      full_float32: it trains all parameters in float32 here, and nothing else.
    """

    title: str
    script: str
    needs: str
    installs: tuple[str, ...]
    full_float32: bool = False


PEERS = {
    "trl": Peer(
        "TRL",
        "step_trl.py",
        "trl, peft, torch",
        ("torch --index-url https://download.pytorch.org/whl/cpu", "trl peft"),
    ),
    "tunix": Peer("Tunix", "step_tunix.py", "tunix", ("google-tunix",), full_float32=True),
}

_HINT = """--peer={name} runs {title} with a Python of its own, since it brings other versions of \
what this package uses. {problem} Make one and name it:
  python -m venv {name}_environment
{installs}
  python experiments/benchmark_step.py --peer={name} --peer_python={name}_environment/bin/python"""


def check_peer(name: str, python: str) -> None:
    """Checks that a peer's Python imports what it needs.

    Raises:
      FileNotFoundError: there is none, or it does not; says how to make one.
    """
    peer = PEERS[name]

    def missing(problem: str) -> FileNotFoundError:
        lines = [f"  {name}_environment/bin/pip install {each}" for each in peer.installs]
        text = _HINT.format(name=name, title=peer.title, problem=problem, installs="\n".join(lines))
        return FileNotFoundError(text)

    if not python:
        raise missing("--peer_python names none.")
    try:
        command = [python, "-c", f"import {peer.needs}"]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise missing(f"{python!r} cannot be run ({error.strerror}).") from error
    if found.returncode:
        last = found.stderr.strip().splitlines()[-1:] or ["no message"]
        raise missing(f"{python!r} does not import {peer.needs} ({last[0]}).")


def check_peers(
    names: Sequence[str], pythons: Sequence[str], precisions: Sequence[str], ranks: Sequence[int]
) -> dict[str, str]:
    """The Python of each peer.

    Raises:
      ValueError: not one Python a peer, or work that a peer does not do.
      FileNotFoundError: as `check_peer`.
    """
    if len(pythons) > len(names):
        raise ValueError(
            f"{len(pythons)} of --peer_python for {len(names)} of --peer: name as many"
        )
    found = dict(itertools.zip_longest(names, pythons, fillvalue=""))
    for name, python in found.items():
        if PEERS[name].full_float32 and (any(ranks) or set(precisions) != {"float32"}):
            raise ValueError(
                f"--peer={name} trains all parameters in float32 here: leave out --lora_rank and "
                "--precision"
            )
        check_peer(name, python)
    return found
