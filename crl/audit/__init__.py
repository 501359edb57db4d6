"""Is a record what it says, and what is to be done where it is not?

| command | file | what it does |
|---|---|---|
| `crl verify` | `verify.py` | holds every file against its manifest; `chain.py` the manifests against each other and the journal, and names what is gone; `audit.py` the rows; `remarks.py` tells what is odd and no damage |
| `crl mend` | `mend.py` | makes damaged files again that follow from the rest of the record, and puts them back |
| `crl redo` | `redo.py` | says which stages go with one that is taken back |
| `crl stage` | `again.py` | makes a stage again in memory; `mend.py` uses it too |

`problem.py` has the words: a problem, its severity, and the command that mends it. A driver opens a run only where
:func:`crl.audit.verify.require_intact` finds no damage; `intact.py` remembers what it found, so that it reads only what
changed. What is written (files moved out of the record and back) is in `crl/run/aside.py`.
"""  # noqa: E501
