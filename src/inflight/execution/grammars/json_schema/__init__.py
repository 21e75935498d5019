"""Read JSON schemas in one dialect, lower them to what the library follows, and check answers for the rest."""
