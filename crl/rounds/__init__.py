"""What the rounds of several recipes are made of: stages, their context, waves, updates, evaluations, forks."""
