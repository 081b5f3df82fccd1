"""The proof that output is the target's: greedy, sampled, KV walks."""
