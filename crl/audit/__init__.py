"""Is a record what it says? Every bank, trial and age of a run is made again and compared, and damage is mended."""
