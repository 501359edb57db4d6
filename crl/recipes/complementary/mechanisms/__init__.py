"""The options of Complementary RL, one file each, and how a round takes them up."""
