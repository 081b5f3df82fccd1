"""Policies raced live: rows, Table 1, checks against replay."""
