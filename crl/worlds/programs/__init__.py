"""What worlds whose episodes are programs share."""
