"""Changes to saved checkpoints, and equality of parameter trees."""

import json

import jax
import numpy as np
from safetensors.numpy import load_file, save_file


def edit_json(path, **changes):
    """Sets keys of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_tensors(path, edit):
    """Calls `edit` with the dict of a safetensors file's tensors and writes them back."""
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path, {"format": "pt"})


def assert_same(left, right):
    """Equal structure and equal numbers."""
    jax.tree.map(np.testing.assert_array_equal, left, right)
    assert jax.tree.structure(left) == jax.tree.structure(right)
