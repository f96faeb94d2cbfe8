"""Judging a policy: exact exploitability, match play, intervals, report pages.

- `policy_table`: a language policy's exact action table, and the exact NashConv of it.
- `history_policy`: the same probabilities in a repeated game, for `sepo.best_exploiter`.
- `matches`: play through text against pools, and against the exact best response; `match_rows` is
  what it comes to, and `scripted` the same of uniform play and of experts.
- `complete`: all of these for one policy, as evaluation.json holds them.
- `matrix_tasks`: the games of the matrix benchmark, `matrix_benchmark` the scores of answers to
  them, `matrix_report` both for a whole policy or for a model behind an `endpoint`.
- `branching_trees`: groups of trees of rollouts in a tabular decision process, all or sampled;
  `branching_theory` what every estimator makes of them, against the exact gradient;
  `branching_examples` processes that are small enough to enumerate.
- `statistics`: means with normal and bootstrap intervals.
- `nash_family`: the equilibria of Kuhn poker, and a table's distance from them.
- `report`: report.html of a run directory; `run_data` is the directory's layout.
- `tree_record`: one prompt's trees of a branching rollout with their credit, as JSON values;
  `tree_page` the page that draws them.
- `results`: tables of the README from JSON files.
"""

from .complete import evaluate_policy
from .history_policy import HistoryProbabilities
from .match_rows import Matches, MatchRow
from .matches import SampledNashConv, match_play, play_matches, sampled_nash_conv
from .matrix_benchmark import residual_reward, score_answers, score_baselines
from .matrix_report import endpoint_replies, judge_replies, policy_replies
from .matrix_tasks import benchmark_tasks, training_payoffs
from .nash_family import compare_to_kuhn_family
from .policy_table import (
    ExactNashConv,
    NamedTable,
    PolicyTable,
    exact_nash_conv,
    nash_conv_of_table,
    policy_table,
    table_from_named,
)
from .report import write_report
from .run_data import RunData, read_run
from .scripted import scripted_baselines, scripted_play
from .statistics import Interval, bootstrap_interval, normal_interval

__all__ = [
    "ExactNashConv",
    "HistoryProbabilities",
    "Interval",
    "MatchRow",
    "Matches",
    "NamedTable",
    "PolicyTable",
    "RunData",
    "SampledNashConv",
    "benchmark_tasks",
    "bootstrap_interval",
    "compare_to_kuhn_family",
    "endpoint_replies",
    "evaluate_policy",
    "exact_nash_conv",
    "judge_replies",
    "match_play",
    "nash_conv_of_table",
    "normal_interval",
    "play_matches",
    "policy_replies",
    "policy_table",
    "read_run",
    "residual_reward",
    "sampled_nash_conv",
    "score_answers",
    "score_baselines",
    "scripted_baselines",
    "scripted_play",
    "table_from_named",
    "training_payoffs",
    "write_report",
]
