"""The acceptance suites: what an accepted node has shown. One file per component, one function per check."""
