"""Rollouts: requests for episodes in; results, a forest of sampled segments and statistics out.

rollout = play(policy, params, requests, domain_environments(domain), EngineOptions(), seed=0)
forest = rollout.forest()
"""

from .branching import Branching, play_branching
from .driver import EngineOptions, drive
from .forests import build_forest, decision_segments
from .generate import Reply, complete, generate, text_log_probs
from .play import ChatCodec, Rollout, members, play
from .sharing import Share
from .team import event_audit, team_metrics

__all__ = [
    "Branching",
    "ChatCodec",
    "EngineOptions",
    "Reply",
    "Rollout",
    "Share",
    "build_forest",
    "complete",
    "decision_segments",
    "drive",
    "event_audit",
    "generate",
    "members",
    "play",
    "play_branching",
    "team_metrics",
    "text_log_probs",
]
