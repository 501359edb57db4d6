"""A bank leaves a run (export) and becomes the starting point of another experiment (import), its provenance kept."""
