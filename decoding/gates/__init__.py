"""Which path drafts next."""
