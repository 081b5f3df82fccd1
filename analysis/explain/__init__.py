"""Exact parts of a probe logit, and what each head attends to and copies."""
