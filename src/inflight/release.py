"""Which release of the program this is, for those of its parts that may not import all of it."""

VERSION = "0.1.0"
