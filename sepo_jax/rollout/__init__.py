"""Rollouts: text episodes in, a forest of sampled segments out.

forest = play(policy, params, episodes, sampling=Sampling(temperature=1.0), seed=0)
"""

from .independent import decision_segments, play
from .requests import (
    Completion,
    EngineOptions,
    Request,
    SlotState,
    admit,
    decode,
    init_slots,
    run_requests,
    share,
)

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
