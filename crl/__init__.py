"""Complementary RL: a policy actor and an experience extractor that co-evolve, as an auditable pipeline.

Importing this package is cheap on purpose: no model library, no Prefect (DESIGN, "The house").
"""

__version__ = "0.1.0"
