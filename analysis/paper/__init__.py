"""The claims, tables and figures of the paper, from finished runs."""
