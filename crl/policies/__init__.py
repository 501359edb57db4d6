"""Language models: find and prepare them, chat, sample with a kept key-value cache, score; text embedders.

torch and transformers are imported inside functions or in modules that only the engine imports, so that naming a
model (`sources`) stays light.
"""
