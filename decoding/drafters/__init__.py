"""Who proposes: the interface, copying, draft models, their cards."""
