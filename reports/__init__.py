"""Results in, text out. Reports decide nothing: they show what `nodeproof.verdict` decided."""
