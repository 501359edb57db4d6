"""Studies: several arms of one experiment over several seeds, each an ordinary run, and what came out as a table.

`config` reads a study file, `plan` makes runs of it, `runs` works through them in child processes (`child`), `metrics`
reads what a run's record says, `statistics` and `results` turn that into means, intervals and paired differences,
`table` and `files` write them down. Nothing here decides a number of a run: that is the method's business.
"""
