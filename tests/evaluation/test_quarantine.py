"""Files of tasks that are left out."""

import json

import pytest

from sepo_jax.evaluation.quarantine import read_quarantine, write_quarantine
from sepo_jax.sandbox.repository_checks import Checked

SOUND = [{"repository": "cart", "variant": 2}, {"repository": "roman", "variant": 2}]


def test_a_file_of_quarantined_tasks_reads_back(tmp_path):
    listed = [({"repository": "cart", "variant": 1}, "a test fails"), ({"name": "ä"}, "no")]
    path = write_quarantine(tmp_path / "deep/er.json", Checked(SOUND, listed), times=7)
    assert read_quarantine(path) == listed
    record = json.loads(path.read_text())
    assert (record["times"], record["checked"]) == (7, 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "has format None, expected 'sepo_jax.quarantine.1'"),
        ('{"format": "sepo_jax.quarantine.2"}', "has format 'sepo_jax.quarantine.2'"),
        ('{"format": "sepo_jax.quarantine.1"}', "lists no 'quarantined' tasks"),
        ('{"format": "sepo_jax.quarantine.1", "quarantined": [{"task": 1}]}', "lists no"),
    ],
)
def test_other_files_are_refused(tmp_path, text, message):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"{message}.*check_tasks.py --output="):
        read_quarantine(path)
    with pytest.raises(FileNotFoundError, match=r"no file .*absent"):
        read_quarantine(tmp_path / "absent")
