"""From activations and labels to a fitted probe and its measures."""
