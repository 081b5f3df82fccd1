"""What the viewer reads and keeps: address, runs, threshold, jobs."""
