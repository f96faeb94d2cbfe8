"""Forests of segments: the data model of everything sampled, its packing, and its files."""

from sepo_jax.forest.batch import Batch, batch_sizes, bucket, fill
from sepo_jax.forest.builder import ForestBuilder, observation_hash, paths
from sepo_jax.forest.data import (
    NO_EPISODE,
    NO_EVENT,
    NO_PARENT,
    NO_TRUNK,
    Forest,
    concatenate,
    equal,
)
from sepo_jax.forest.events import check_events_whole
from sepo_jax.forest.packing import pack, unpack
from sepo_jax.forest.prefixes import pack_sharing_prefixes
from sepo_jax.forest.storage import load, save

__all__ = [
    "NO_EPISODE",
    "NO_EVENT",
    "NO_PARENT",
    "NO_TRUNK",
    "Batch",
    "Forest",
    "ForestBuilder",
    "batch_sizes",
    "bucket",
    "check_events_whole",
    "concatenate",
    "equal",
    "fill",
    "load",
    "observation_hash",
    "pack",
    "pack_sharing_prefixes",
    "paths",
    "save",
    "unpack",
]
