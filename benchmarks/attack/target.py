"""The server that is attacked: its model folder, its keys, its limits.

The model is the built-in one with a chat template that turns hostile when a message asks it to, so that honest clients
and attackers of the template meet on one server.
"""

from __future__ import annotations

import json
import resource
import shutil
from pathlib import Path

from benchmarks.attack.memory import tree
from benchmarks.served import Server

CONTEXT = 1024
VOCABULARY = 2048
HONEST_KEYS = [f"sk-honest-{number}" for number in range(20)]
HOSTILE_KEYS = [f"sk-hostile-{number}" for number in range(4)]
PROCESS_BYTES = 1 << 30  # RLIMIT_DATA of each of the server's processes
# What the template does when a message says "bomb NAME": a sentence, and the Jinja of it. None of it is constant, for
# that would be computed when the template is compiled.
BOMBS = {
    "repeat": ("repeat a letter 10^10 times", "{{ messages[0].content * 10000000000 }}"),
    "range": (
        "count to 10^5 within 10^5",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    ),
    "loops": (
        "run nine loops within each other",
        "".join(f"{{% for i{n} in range(99) %}}" for n in range(9)) + "x" + "{% endfor %}" * 9,
    ),
    "power": ("compute 9^9^9", "{% set n = messages|length + 8 %}{{ n ** (n ** n) }}"),
    "pad": (
        "pad a word to 10^10 letters",
        "{{ ('%' ~ messages|length ~ '0000000000s') % 'a' }}{{ messages[0].content.center(10000000000) }}",
    ),
    "words": ("write 10^8 paragraphs", "{{ lipsum(n=100000000) }}"),
    "grow": (
        "double a list for ever",
        "{% set kept = namespace(a=[1, 2]) %}{% for i in range(99) %}{% set kept.a = kept.a + kept.a %}{% endfor %}",
    ),
}


def make_model(folder: Path) -> Path:
    """A copy of the built-in model with the hostile template."""
    import inflight

    own = Path(inflight.__file__).parent / "builtin_model"
    model = folder / "model"
    shutil.copytree(own, model)
    path = model / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    bombs = "".join(
        f"{{%- if messages[0].content == 'bomb {name}' -%}}{code}{{%- endif -%}}" for name, (_, code) in BOMBS.items()
    )
    settings["chat_template"] = bombs + settings["chat_template"]
    path.write_text(json.dumps(settings), encoding="utf-8")
    return model


def arguments(folder: Path, with_keys: bool) -> list[str]:
    """Return the options of `inflight serve`; files that they need are made in the folder."""
    data = folder / ("data" if with_keys else "open data")
    shutil.rmtree(data, ignore_errors=True)  # jobs of earlier attackers would go on
    given = [str(folder / "model"), "--served-model-name", "built-in", "--data-dir", str(data), "--policy", "fair"]
    if not with_keys:
        return given
    keys = [*HONEST_KEYS, *HOSTILE_KEYS]
    tables = [f"[{key.removeprefix('sk-')}]\nkey = {json.dumps(key)}\n" for key in keys]
    path = folder / "keys.toml"
    path.write_text("".join(tables), encoding="utf-8")
    return [*given, "--api-keys-file", str(path)]


def limit_memory(server: Server) -> None:
    """Limit the memory of each process by itself, and of those that it will start."""
    for process in tree(server.process.pid):
        resource.prlimit(process, resource.RLIMIT_DATA, (PROCESS_BYTES, PROCESS_BYTES))
