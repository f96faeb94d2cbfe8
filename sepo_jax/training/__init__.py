"""Training: one update function, two stages, checkpoints, resume, and the files of a run.

run = train(config)                       # SFT, SEPO, exact evaluation, report
run = train(config, objective=my_loss)    # the same with an own loss
"""

from .loop import Run, train
from .sepo_stage import NoSpreadError
from .settings import Settings, read_settings, to_dict
from .stage_runner import NonFiniteError
from .update import TrainState, as_objective, init_state, make_optimizer, make_update

__all__ = [
    "NoSpreadError",
    "NonFiniteError",
    "Run",
    "Settings",
    "TrainState",
    "as_objective",
    "init_state",
    "make_optimizer",
    "make_update",
    "read_settings",
    "to_dict",
    "train",
]
