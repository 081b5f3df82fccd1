"""Policies played over a trace without the model; oracle, cost-aware fit."""
