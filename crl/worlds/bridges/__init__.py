"""Bridges to environments that people already have, one file each: Gymnasium, MiniGrid, TextArena, reasoning-gym,
TextWorld. Each is an optional extra of the package; what they share is in `wave` and `packages`."""
