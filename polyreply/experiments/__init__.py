"""From raw data to rendered results, in stages that are kept: a second run does only what is missing."""
