"""Start servers: the processes of one model or several, and what each of them loads."""
