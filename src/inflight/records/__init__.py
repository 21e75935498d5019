"""The one schema of records and results, and the one reader that holds files to it. Anyone may import it."""
