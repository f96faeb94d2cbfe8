"""Who may import whom: the floors of the package, read from the source of every module."""

import ast
from pathlib import Path

import pytest

import sepo_jax

PACKAGE = Path(sepo_jax.__file__).parent
EVERYWHERE = {"names", "mean"}
FLOORS = {
    "games": 1,
    "losses": 1,
    "advantages": 1,
    "domains": 1,
    "forest": 2,
    "policy": 2,
    "sandbox": 2,
    "algorithms": 3,
    "credit": 3,
    "objective": 3,
    "rollout": 3,
    "sepo": 4,
    "evaluation": 4,
    "training": 5,
}
# Modules of one floor that one floor lets see each other, upward only.
SAME_FLOOR = {("credit", "algorithms"), ("objective", "algorithms"), ("evaluation", "sepo")}
OUTSIDE = {
    "games": {"jax", "numpy", "chex", "scipy", "pyspiel"},
    "losses": {"jax", "chex"},
    "advantages": {"jax", "chex"},
    "domains": {"numpy", "bm25s", "textworld", "fast_downward", "alfworld"},
    "forest": {"numpy", "chex"},
    "sandbox": {
        "numpy",
        "ray",
        "math_verify",
    },  # the host's side of a callback, which must not touch jax: D04
    "names": set(),
    "mean": set(),
}
STANDARD = set(__import__("sys").stdlib_module_names)


def part_of(path: Path) -> str:
    """Package (or top-level module) a source file belongs to."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imports_of(path: Path, source: str | None = None) -> tuple[set[str], set[str]]:
    """Parts of sepo_jax that a file imports, and top-level packages outside it."""
    inside, outside = set(), set()
    package = ["sepo_jax", *path.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(ast.parse(source or path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = [module]
            if module == "sepo_jax":
                names = [f"sepo_jax.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] != "sepo_jax":
                outside.add(parts[0])
            elif len(parts) > 1:
                inside.add(parts[1])
    return inside, outside


def violations(path: Path, source: str | None = None) -> list[str]:
    """What a file imports against the table."""
    here = part_of(path)
    inside, outside = imports_of(path, source)
    wrong = []
    for other in sorted(inside - {here} - EVERYWHERE):
        if other not in FLOORS:
            wrong.append(f"{here} imports {other}, which has no floor")
        elif FLOORS.get(here, 9) <= FLOORS[other] and (here, other) not in SAME_FLOOR:
            wrong.append(f"{here} (floor {FLOORS.get(here)}) imports {other} ({FLOORS[other]})")
    if here in OUTSIDE:
        extra = outside - OUTSIDE[here] - STANDARD
        wrong += [f"{here} imports {name}, allowed: {sorted(OUTSIDE[here])}" for name in extra]
    return wrong


SOURCES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_module_imports_only_from_floors_below(path):
    assert violations(path) == []


def test_every_package_has_a_floor():
    parts = {part_of(path) for path in SOURCES} - EVERYWHERE - {"__init__"}
    assert parts <= FLOORS.keys()


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("games/matrix.py", "from sepo_jax.policy import load"),
        ("domains/kuhn.py", "import jax"),
        ("sandbox/queue.py", "def exchange():\n    import jax.numpy"),
        ("losses/ratios.py", "from ..advantages import tree"),
        ("policy/policy.py", "from ..forest import pack"),
        ("forest/data.py", "from sepo_jax import objective"),
    ],
)
def test_a_forbidden_import_is_found(file, source):
    assert violations(PACKAGE / file, source) != []


def test_top_level_holds_only_what_the_design_names():
    allowed = {
        "setup.py", "sepo_jax", "configs", "experiments", "tests", "README.md",
        ".ci", ".gitignore", "pyproject.toml",
    }  # fmt: skip
    import subprocess

    root = PACKAGE.parent
    listed = subprocess.run(
        ["git", "ls-files"], cwd=root, capture_output=True, text=True, check=False
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    assert {line.split("/")[0] for line in listed.stdout.splitlines()} <= allowed
