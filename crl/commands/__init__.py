"""The commands of `crl`, thin over the library; each imports what it needs when it runs."""
