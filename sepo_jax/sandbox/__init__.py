"""Environments in sandboxes, and the host queue that a rollout talks to (no jax)."""
