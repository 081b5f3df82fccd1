"""One row per committed length: what every path would have had accepted; one writer, one reader."""
