"""The README's code for matrix games runs, and says what it says it does."""

import re
from pathlib import Path

import numpy as np

README = Path(__file__).parents[2] / "README.md"


def test_the_code_of_the_matrix_games():
    text = README.read_text(encoding="utf-8")
    section = text.partition("## Matrix games\n")[2].partition("\n## ")[0]
    games, prompts = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    names: dict = {}
    exec(games, names)
    assert names["games"].shape == (1000, 3, 3) and names["larger"].payoffs.shape == (1000, 8, 8)
    assert np.abs(names["gaps"]).max() < 1e-6
    assert names["pennies"] == ((1.0, -1.0), (-1.0, 1.0))
    exec(prompts, names)
    assert names["answer"].valid and len(names["arms"]["dense/3"]) == 100
    assert names["prompt"][-1]["role"] == "user"
