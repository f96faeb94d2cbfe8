"""Rollouts: text episodes in, a forest of sampled segments out.

forest = play(policy, params, episodes, sampling=Sampling(temperature=1.0), seed=0)
"""

from .driver import Completion, EngineOptions, Request, run_requests
from .engine import SlotState, admit, decode, init_slots, share
from .independent import decision_segments, play

__all__ = [
    "Completion",
    "EngineOptions",
    "Request",
    "SlotState",
    "admit",
    "decision_segments",
    "decode",
    "init_slots",
    "play",
    "run_requests",
    "share",
]
