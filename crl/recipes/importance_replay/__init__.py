"""Importance-weighted replay: past samples are drawn by a learned worth, measured on held-out training tasks."""
