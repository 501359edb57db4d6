"""Software engineering in SWE-Bench's form: repair a repository with three tools, judged by named tests alone."""
