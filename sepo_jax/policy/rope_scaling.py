"""Scalings of rotary frequencies that published checkpoints use."""

import dataclasses
import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from sepo_jax.names import check_option, unknown

KINDS = {  # kind: the fields it needs, each under its Hugging Face name
    "linear": {"factor": "factor"},
    "llama3": {
        "factor": "factor",
        "low_freq_factor": "low_freq_factor",
        "high_freq_factor": "high_freq_factor",
        "original_max_positions": "original_max_position_embeddings",
    },
    "yarn": {"factor": "factor", "original_max_positions": "original_max_position_embeddings"},
    "proportional": {},
}
_OPTIONAL = {
    "yarn": ("attention_factor", "beta_fast", "beta_slow", "truncate"),
    "proportional": ("factor",),
}


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are changed for contexts longer than those trained on.

    Attributes:
      kind: "linear": every frequency is divided by `factor` (Gemma 3). "llama3": wavelengths
        (tokens) above `original_max_positions / low_freq_factor` are stretched by `factor`, those
        below `original_max_positions / high_freq_factor` are kept, those between are blended
        (Llama 3.1). "yarn": the blend of Peng et al., arXiv 2309.00071, section 3.2, and cosines
        and sines multiplied by `attention_factor` (Qwen). "proportional": only the first
        `rotary_fraction` of the frequencies of the whole head turn, divided by `factor` (Gemma 4).
      attention_factor: 0.1 ln(factor) + 1 when None (arXiv 2309.00071, section 3.4).
      beta_fast, beta_slow: turns within `original_max_positions` between which "yarn" blends.
      truncate: whether the borders of that blend are whole indices.
    """

    kind: str = "llama3"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True

    def __post_init__(self):
        check_option("rope scaling", self.kind, KINDS)
        if not self.factor >= 1 or not 0 < self.low_freq_factor < self.high_freq_factor:
            raise ValueError(
                f"{self.kind} rope scaling needs factor >= 1 and "
                f"0 < low_freq_factor < high_freq_factor; given {self}"
            )
        if self.original_max_positions < 1 or not 0 < self.beta_slow < self.beta_fast:
            raise ValueError(
                f"{self.kind} rope scaling needs original_max_positions >= 1 and "
                f"0 < beta_slow < beta_fast; given {self}"
            )

    @classmethod
    def from_mapping(cls, mapping: Mapping) -> "RopeScaling":
        """Reads the `rope_scaling` / `rope_parameters` entry of a Hugging Face config.

        Raises:
          ValueError: a kind that is not known, or one without a number it needs.
        """
        kind = mapping.get("rope_type", mapping.get("type"))
        if kind not in KINDS:
            raise unknown("rope scaling", kind, ["default", *KINDS])
        absent = [name for name in KINDS[kind].values() if mapping.get(name) is None]
        if absent:
            raise ValueError(f"rope scaling {kind!r} lacks {absent}; given {dict(mapping)}")
        if mapping.get("mscale") or mapping.get("mscale_all_dim"):
            raise ValueError(f"rope scaling {kind!r} with mscale is not supported: {dict(mapping)}")
        fields = {own: mapping[name] for own, name in KINDS[kind].items()}
        optional = (name for name in _OPTIONAL.get(kind, ()) if mapping.get(name) is not None)
        fields |= {name: mapping[name] for name in optional}
        kinds = {"original_max_positions": int, "truncate": bool}
        return cls(kind, **{name: kinds.get(name, float)(v) for name, v in fields.items()})

    def to_mapping(self) -> dict:
        """The entry as Hugging Face configs write it."""
        entry = {name: getattr(self, own) for own, name in KINDS[self.kind].items()}
        entry |= {name: getattr(self, name) for name in _OPTIONAL.get(self.kind, ())}
        return {
            "rope_type": self.kind,
            **{name: value for name, value in entry.items() if value is not None},
        }

    @property
    def magnitude(self) -> float:
        """What cosines and sines are multiplied by."""
        if self.kind != "yarn":
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        return 0.1 * math.log(self.factor) + 1.0

    def scaled(self, frequency: jax.Array, theta: float, size: int) -> jax.Array:
        """`frequency` [n] of theta^(-2 i / size), i = 0..n-1, after scaling."""
        if self.kind in ("linear", "proportional"):
            return frequency / self.factor
        if self.kind == "llama3":
            turns = self.original_max_positions * frequency / (2 * math.pi)
            low, high = self.low_freq_factor, self.high_freq_factor
            keep = jnp.clip((turns - low) / (high - low), 0.0, 1.0)
        else:
            keep = 1 - self._ramp(theta, size, frequency.shape[0])
        return frequency * (keep + (1 - keep) / self.factor)

    def _ramp(self, theta: float, size: int, count: int) -> jax.Array:
        """0 up to the frequency index of `beta_fast` turns, 1 from that of `beta_slow` on."""

        def index(turns):
            wavelength = self.original_max_positions / (turns * 2 * math.pi)
            return size * math.log(wavelength) / (2 * math.log(theta))

        low, high = index(self.beta_fast), index(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, size - 1)
        high = high + 0.001 if low == high else high
        return jnp.clip((jnp.arange(count, dtype=jnp.float32) - low) / (high - low), 0.0, 1.0)
