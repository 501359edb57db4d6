"""Experiential reinforcement learning (arXiv 2602.13949): try, reflect on what the environment said, try again."""
