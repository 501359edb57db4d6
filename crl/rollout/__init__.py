"""Episodes in waves: prompts, action parsing, and playing a wave over one session. Writes no files."""
