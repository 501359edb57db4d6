"""What prompts and answers are made of, whoever writes them: templates, sampled outputs, thoughts before an answer,
what two of them begin with."""
