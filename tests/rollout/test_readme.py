"""The environment of the README is played as the README plays it."""

import re
import sys
from pathlib import Path

import sepo_jax.policy

README = Path(__file__).parents[2] / "README.md"


def test_the_environment_of_the_readme_is_played(agent, tmp_path, monkeypatch, capsys):
    text = README.read_text(encoding="utf-8")
    section = text[text.index("## Rollouts and sandboxes") : text.index("## Branching rollouts")]
    environment, use = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    assert environment.startswith("# guess.py\n")
    (tmp_path / "guess.py").write_text(environment, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sepo_jax.policy, "load", lambda source: agent)
    names = {}
    exec(use, names)
    sys.modules.pop("guess")
    results, forest = names["rollout"].results, names["forest"]
    assert [result.status for result in results] == ["finished"] * 8
    # One prompt for the whole group; a random policy guesses wrong, and answers three times.
    assert (forest.parent < 0).sum() == 1
    assert all(len(result.actions) == 3 or result.rewards[-1] == {0: 1.0} for result in results)
    assert "finished" in capsys.readouterr().out


def test_the_trees_of_the_readme_grow(capsys):
    text = README.read_text(encoding="utf-8")
    section = text[text.index("## Branching rollouts") : text.index("## Matrix games")]
    (use,) = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    names = {}
    exec(use, names)
    assert names["rollout"].statistics["leaves"] == 56 == 4 * names["branching"].leaves
    assert capsys.readouterr().out.startswith("56 ")
