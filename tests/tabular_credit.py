"""Gradients of tabular policies whose outcomes are enumerated; shared by tests of credit."""

import numpy as np


def expected_gradient(weight, scores, rewards) -> np.ndarray:
    """Expected REINFORCE gradient of the mean reward over all episodes and rounds.

    Args:
      weight: [E], in proportion to probabilities.
      scores: [E, parameters], gradient of each outcome's log-probability.
      rewards: [E, R].
    """
    return (weight / weight.sum() * rewards.mean(axis=1)) @ scores


def finite_difference(function, parameters, step=1e-5) -> np.ndarray:
    """Central differences of a function of a vector."""
    directions = np.eye(len(parameters)) * step
    return np.array(
        [(function(parameters + d) - function(parameters - d)) / (2 * step) for d in directions]
    )
