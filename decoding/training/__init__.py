"""Training of drafts: an EAGLE-3 head, or a small draft model for SPS, on the target's own text."""
