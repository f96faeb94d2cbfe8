"""Reinforcement learning for language-model agents that act strategically."""
