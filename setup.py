"""Package description of sepo_jax."""

from pathlib import Path

from setuptools import find_packages, setup

setup(
    name="sepo_jax",
    version="0.1.0",
    description="Reinforcement learning for language-model agents that act strategically, in JAX",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=["sepo_jax", "sepo_jax.*"]),
    package_data={
        "sepo_jax.domains.repository": ["repositories/*.txt"],
        "sepo_jax.evaluation": ["tree_page.css", "tree_page.js"],
    },
    install_requires=[
        "absl-py>=2.0",
        "chex>=0.1.92",
        "flax>=0.12",
        "jax>=0.10",
        "matplotlib>=3.8",
        "ml_collections>=1.0",
        "numpy>=2.0",
        "optax>=0.2.8",
        "orbax-checkpoint>=0.12",
        "safetensors>=0.4",
        "scipy>=1.11",
        "tokenizers>=0.20",
        "tqdm>=4.66",
        "transformers>=5.0",
        "jinja2>=3.1",
    ],
    extras_require={
        # Pinned: the domain puts the parts of textworld together itself.
        "alfworld": ["textworld[pddl]==1.7.0", "alfworld==0.4.2"],
        "test": [
            "pytest>=8",
            "pytest-xdist>=3.5",
            "hypothesis>=6.100",
            "ruff>=0.6",
            "gguf>=0.10",
            "openai>=1.40",
            "bm25s>=0.3",
            "math-verify>=0.9",
        ],
        "endpoint": ["openai>=1.40"],
        "gguf": ["gguf>=0.10"],
        "openspiel": ["open_spiel>=2.0"],
        "math": ["math-verify>=0.9"],  # imports sympy; compares answers
        "nashpy": ["nashpy>=0.0.41"],  # compared with in experiments/benchmark_games.py
        "parity": ["torch>=2.4", "peft>=0.17"],
        "ray": ["ray>=2.40"],
        "search": ["bm25s>=0.3"],
        "tpu": ["jax[tpu]"],  # with the libtpu of its version, whose compiler dry runs need
        "webshop": ["bm25s>=0.3"],
    },
)
