"""Twenty small repositories with a seeded bug each, in many variants.

A repository is a text file beside this module. Its parts begin with lines "=== KIND NAME"; a name
such as `$price` in them stands for one of several words, and every choice of words is a variant of
the task: the same bug under other names. Variant 0 has the first word of each.
"""

import ast
import functools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from string import Template
from typing import NamedTuple

from sepo_jax.domains.base import check_integer
from sepo_jax.domains.repository.tasks import RepositoryTask
from sepo_jax.names import check_option

PLACE = Path(__file__).with_name("repositories")
NAMES = tuple(sorted(path.stem for path in PLACE.glob("*.txt")))
_EVERY = 4  # one variant of so many is for evaluation


class Repository(NamedTuple):
    """A repository before its names are chosen.

    Attributes:
      words: placeholder -> the words that may stand for it.
      parts: (kind, name, text) in the order of the file.
    """

    words: dict[str, tuple[str, ...]]
    parts: tuple[tuple[str, str, str], ...]

    @property
    def variants(self) -> int:
        """Number of choices of words."""
        return math.prod(map(len, self.words.values()))


@functools.cache
def repository(name: str) -> Repository:
    """A bundled repository by its name; ValueError for an unknown one, with the nearest."""
    check_option("repository", name, NAMES)
    parts = tuple(_parts((PLACE / f"{name}.txt").read_text(encoding="utf-8")))
    lines = next(text for kind, _, text in parts if kind == "names").splitlines()
    words = {key: tuple(rest.split()) for key, rest in (line.split(":") for line in lines)}
    return Repository(words, tuple(part for part in parts if part[0] != "names"))


def _parts(text: str) -> Iterator[tuple[str, str, str]]:
    for part in ("\n" + text).split("\n=== ")[1:]:
        head, _, body = part.partition("\n")
        kind, _, name = head.partition(" ")
        yield kind, name, body.removesuffix("\n") + "\n"


@functools.lru_cache(maxsize=4096)
def bundled_task(name: str, variant: int = 0) -> RepositoryTask:
    """A variant of a bundled repository; ValueError for one that is not there."""
    chosen = _words(name, variant)
    found: dict[str, dict[str, str]] = {"issue": {}, "file": {}, "test": {}, "hidden": {}}
    gold = []
    for kind, place, text in repository(name).parts:
        place, text = (Template(each).substitute(chosen) for each in (place, text))
        if kind == "gold":
            gold += [(place, *line.split(" -> ")) for line in text.splitlines()]
        else:
            found[kind][place] = text
    return RepositoryTask(
        name=f"{name}/{variant}",
        issue=found["issue"][""].strip(),
        files=found["file"],
        tests=found["test"],
        hidden_tests=found["hidden"],
        fail_to_pass=_tests_in(found["hidden"]),
        pass_to_pass=_tests_in(found["test"]),
        gold=tuple(gold),
    )


def _words(name: str, variant: int) -> dict[str, str]:
    words, rest = {}, check_integer("variant", variant, minimum=0)
    for key, options in repository(name).words.items():
        rest, index = divmod(rest, len(options))
        words[key] = options[index]
    if rest:
        raise ValueError(
            f"repository {name!r} has {repository(name).variants} variants, from 0 on; there is no "
            f"variant {variant}"
        )
    return words


def _tests_in(files: dict[str, str]) -> tuple[str, ...]:
    """Names of all tests of test files, as `unittest` takes them."""
    return tuple(
        f"{Path(path).with_suffix('').as_posix().replace('/', '.')}.{group.name}.{test.name}"
        for path, text in files.items()
        for group in ast.parse(text).body
        if isinstance(group, ast.ClassDef)
        for test in group.body
        if isinstance(test, ast.FunctionDef) and test.name.startswith("test")
    )


@functools.cache
def variants(name: str, evaluation: bool) -> Sequence[int]:
    """Variants of a repository to be judged by, or those to train on.

    The two have none in common. Every word occurs in both, in other company.
    """
    chosen = []
    for variant in range(repository(name).variants):
        rest, total = variant, 0
        for options in repository(name).words.values():
            rest, index = divmod(rest, len(options))
            total += index
        if (total % _EVERY == 0) == evaluation:
            chosen.append(variant)
    return tuple(chosen)
