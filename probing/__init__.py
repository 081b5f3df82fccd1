"""A model with named streams, the activations it stores, and the probes read from them."""
