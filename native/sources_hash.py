"""Print a hash of the kernels' sources, by which a compiled module and a checkout know whether they belong together."""

import hashlib
from pathlib import Path

SOURCES = Path(__file__).parent

digest = hashlib.sha256()
for name in sorted(path.relative_to(SOURCES).as_posix() for path in SOURCES.rglob("*.*")):
    if name.endswith((".h", ".cpp", ".txt")):
        digest.update(f"{name}\n".encode() + (SOURCES / name).read_bytes())
print(digest.hexdigest())
