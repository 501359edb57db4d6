"""Importance-weighted replay: past samples are drawn by a learned worth, which is measured on held-out training tasks."""
