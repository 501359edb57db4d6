"""Learning: from samples to one DeepSpeed update, and supervised starts.

Parts that need torch are imported only where a model is: `objectives`, `batches`, `scoring`, `process_group`,
`checkpoint`, `trainer`, `warm_start`.
Nothing here reads or writes the record; rows come in, rows and a checkpoint directory go out.

Suffixes of tensors name their shapes, `logprobs_BT`: B rows of a micro-batch (samples, each one sequence), T target
tokens of the longest, P positions that the model computes, N of them whose target is trained, R some rows of these; V
vocabulary, C ids to choose among. In attention (`tree_attention`): H key-value heads, G query heads that share one, Q
of both; N positions of one segment, S that it sees, K all that segments see, one behind another; D width of a key, E of
a value, X = G N. Digits are lengths. Tensors of any shape (parameters, gradients) and the ids `absent` have none.
"""
