"""Rollouts: requests for episodes in; results, a forest of sampled segments and statistics out.

rollout = play(policy, params, requests, domain_environments(domain), EngineOptions(), seed=0)
forest = rollout.forest()
"""

from .driver import EngineOptions, drive
from .generate import Reply, complete, generate, text_log_probs
from .play import ChatCodec, Rollout, build_forest, decision_segments, members, play

__all__ = [
    "ChatCodec",
    "EngineOptions",
    "Reply",
    "Rollout",
    "build_forest",
    "complete",
    "decision_segments",
    "drive",
    "generate",
    "members",
    "play",
    "text_log_probs",
]
