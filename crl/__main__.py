"""`python -m crl`: the command line without the console script."""

from crl.cli import main

main()
