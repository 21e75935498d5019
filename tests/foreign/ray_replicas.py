"""Servers with replicas of Ray's, for tests: the interpreter that has Ray, and the processes below a server's."""

from __future__ import annotations

import subprocess
import sysconfig

from .environments import Environment

READY_SECONDS = 240.0  # Ray and two engines on a machine that does other things, too


def checkout_python(environment: Environment) -> str:
    """Ray's, with this checkout beside it."""
    [packages] = (environment.root / "lib").glob("python*/site-packages")
    here = sysconfig.get_paths()["purelib"]
    (packages / "zz_checkout.pth").write_text(f"import site; site.addsitedir({here!r})\n")
    return environment.program("python")


def children(server: int) -> list[tuple[int, str]]:
    """Processes below this one: their ids and what they are called."""
    listed = subprocess.run(["ps", "-eww", "-o", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()[1:]]
    parents = {int(pid): int(parent) for pid, parent, *_ in rows}

    def is_below(pid: int) -> bool:
        while pid in parents:
            if (pid := parents[pid]) == server:
                return True
        return False

    return [(int(row[0]), row[-1]) for row in rows if is_below(int(row[0]))]
