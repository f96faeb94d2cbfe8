"""Measures of teams: right answers of questions that are asked several times, sizes of events, and
what becomes of events in a step. `measures` has the registry that they join."""

TEAM_MEASURES: tuple[tuple[str, str, str, str], ...] = (
    # Key, label, better, sentence of a `measures.Measure`.
    (
        "accuracy",
        "Accuracy",
        "higher",
        "Share of episodes whose answer is right.",
    ),
    (
        "exact",
        "Exact match",
        "higher",
        "Share of episodes whose answer is one of the accepted ones, but for case, punctuation and "
        "articles.",
    ),
    (
        "f1",
        "F1",
        "higher",
        "Overlap of an answer's words with those of the nearest accepted answer, in [0, 1]; mean "
        "over episodes.",
    ),
    (
        "avg",
        "Avg@n",
        "higher",
        "Share of right answers, n to each question; mean over questions. It is the accuracy, or "
        "exact match, with an interval over questions.",
    ),
    (
        "pass",
        "Pass@n",
        "higher",
        "Share of questions of which at least one of n answers is right.",
    ),
    (
        "answered",
        "Answered",
        "higher",
        "Share of episodes that gave an answer, right or wrong.",
    ),
    (
        "unchecked",
        "Unchecked answers",
        "lower",
        "Share of episodes whose answer could not be compared, such as for want of time; it counts "
        "as wrong.",
    ),
    (
        "solvers",
        "Solvers",
        "",
        "Mean number of solvers that are asked at a time.",
    ),
    (
        "workers",
        "Workers",
        "",
        "Mean number of workers that search in a round.",
    ),
    (
        "active_set",
        "Active set",
        "",
        "Mean number of members of an event: outputs that one transition consumes together.",
    ),
    (
        "active_set_of_kind",
        "Active set of a kind",
        "",
        "Mean number of members of an event of the kind that the key names.",
    ),
    (
        "events",
        "Events",
        "",
        "Mean number of events in an episode.",
    ),
    (
        "calls",
        "Calls",
        "",
        "Mean number of replies in an episode, those that belong to no event included.",
    ),
    (
        "tokens_of_role",
        "Tokens of a role",
        "",
        "Mean number of tokens that members of the role that the key names sampled in an episode.",
    ),
    (
        "member_log_ratio_abs",
        "Log-ratio of a member",
        "",
        "Mean absolute log-ratio of trained to sampling policy over whole replies of members; that "
        "of an event is made of those of its members.",
    ),
    (
        "dropped_events",
        "Events left out",
        "lower",
        "Share of events that are left out of a step: they lack a member, or their group has no "
        "spread where such groups do not count.",
    ),
    (
        "incomplete_events",
        "Incomplete events",
        "lower",
        "Number of events that lack a member, and are left out whole.",
    ),
)

TEAM_PATTERNS: tuple[tuple[str, str], ...] = (
    # Last part of a flat key -> key above.
    (r"right", "accuracy"),
    (r"avg@\d+", "avg"),
    (r"pass@\d+", "pass"),
    (r"active_set_.+", "active_set_of_kind"),
    (r"tokens_(?!per_).+", "tokens_of_role"),
)
