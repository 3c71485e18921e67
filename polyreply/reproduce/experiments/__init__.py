"""One file for each table and figure: what it needs, and what it makes of it."""
