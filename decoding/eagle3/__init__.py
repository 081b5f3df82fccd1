"""The EAGLE-3 head: weights, unrolling, its drafter."""
