"""Prompts and completions, a label and a surface class for each token, and how they are split."""
