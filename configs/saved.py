"""A run's own config again.

python experiments/train.py --config=configs/saved.py:runs/my_run/config.json --run=again
"""

import json

from ml_collections import config_dict


def get_config(argument: str = "") -> config_dict.ConfigDict:
    """The config in the JSON file named by `argument`.

    Raises:
      FileNotFoundError: there is no such file.
    """
    with open(argument, encoding="utf-8") as file:
        return config_dict.ConfigDict(json.load(file), convert_dict=True)
