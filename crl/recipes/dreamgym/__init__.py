"""Experience synthesis (DreamGym, arXiv 2511.03773): a model of the environment, learned from real transitions, in
which the actor plays most of its episodes."""
