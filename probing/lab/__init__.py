"""The studies of the probing chapter: sites, controls, tries, matches, timings, the choice."""
