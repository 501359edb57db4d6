"""Learning: from rows to advantages, credit, samples, and one DeepSpeed update.

Pure parts (numpy and rows only): `advantages`, `credit`, `buffer`, `samples`. Parts that need torch and are imported
only where a model is: `objectives`, `batches`, `scoring`, `process_group`, `checkpoint`, `trainer`, `warm_start`.
Nothing here reads or writes the record; rows come in, rows and a checkpoint directory go out.
"""
