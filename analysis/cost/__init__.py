"""What a forward pass, a draft and a probe take."""
