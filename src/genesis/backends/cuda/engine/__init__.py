"""Choosing among implementations of one problem: candidates, planner, tuner, and the store."""
