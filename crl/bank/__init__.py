"""The experience bank: retrieval (eq. 6), consolidation, content-addressed texts and embeddings, exact indexes."""
