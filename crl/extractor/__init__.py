"""The experience extractor: trajectory → prompt → text → operations; merging of the bank."""
