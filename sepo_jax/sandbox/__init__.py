"""Environments in sandboxes, and the host queue that a rollout talks to (no jax).

Names are looked up where they are defined when they are first used: a worker process imports only
what it needs, and is ready sooner.
"""

import importlib

_PLACES = {
    "base": ("BaseEnvironment", "ask", "finish"),
    "container_repository": ("container_environments",),
    "environments": (
        "DomainEnvironment",
        "Replayed",
        "Workspace",
        "domain_environments",
        "replayed",
    ),
    "episodes": ("Action", "EpisodeRequest", "EpisodeResult", "Past", "StopRules"),
    "in_process": ("InProcessPool",),
    "isolation": ("Limits", "probe"),
    "process_pool": ("ProcessPool",),
    "protocol": (
        "Answer",
        "BadAnswer",
        "Call",
        "Environment",
        "EnvironmentFactory",
        "Failure",
        "Pool",
        "Prompt",
        "SandboxError",
        "SnapshotRefused",
        "TooManyFailures",
        "Turn",
    ),
    "queue": ("HostQueue",),
    "ray_pool": ("RayPool",),
    "repository": ("RepositoryEnvironment", "repository_environments"),
    "repository_checks": ("check_tasks",),
    "snapshots": ("content_of",),
}
_MODULES = {name: module for module, names in _PLACES.items() for name in names}
__all__ = sorted(_MODULES)


def __getattr__(name: str):
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
