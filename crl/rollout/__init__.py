"""Episodes in waves: prompts, action parsing, and playing a wave in lockstep over one session. Writes no files."""
