"""A trained agent leaves its run: what it is (`source`), the folder that others open (`export`), its card (`card`)."""
