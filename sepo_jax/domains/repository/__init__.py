"""Repair of repositories: tasks, actions, the bundled ones, and instances of SWE-bench."""
