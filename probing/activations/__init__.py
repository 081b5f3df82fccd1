"""What the streams held: capture, and the store on disk."""
