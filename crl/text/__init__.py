"""What prompts and answers are made of, whoever writes them: templates, and trees of the answers allowed."""
