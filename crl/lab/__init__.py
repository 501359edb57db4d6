"""The laboratory: studies of arms and seeds, and the warm starts that miniatures begin from."""
