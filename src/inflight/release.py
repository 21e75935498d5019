"""The release of this program. Builds take the package's version from here; no installed metadata is read."""

VERSION = "0.1.0"
