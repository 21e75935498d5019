"""Analyze a chat template's syntax tree: its use of messages, without running it."""

from __future__ import annotations

from jinja2 import nodes

from inflight.text.chat_messages import ContentForm

# Of text that a client wrote, these leave something out in the middle, or make other characters of it.
_CHANGING = frozenset(
    ("replace", "lower", "upper", "title", "capitalize", "casefold", "swapcase", "translate", "format", "reverse")
)
_BREAKING = frozenset(
    ("split", "rsplit", "splitlines", "partition", "rpartition", "list", "sort", "unique", "select", "reject")
)


def content_form(tree: nodes.Template) -> ContentForm:
    """Return the form in which a template takes a message's content."""
    names = {"content"}
    names |= {
        assign.target.name
        for assign in tree.find_all(nodes.Assign)
        if isinstance(assign.target, nodes.Name) and _is_content(assign.node, names)
    }
    loops = any(_is_content(loop.iter, names) for loop in tree.find_all(nodes.For))
    asks = any(test.name == "string" for test in tree.find_all(nodes.Test))
    return ContentForm(loops, asks)


def takes_arguments_as_text(tree: nodes.Template) -> bool:
    """Return whether a template writes a tool call's arguments unchanged, so that they must be JSON text.

    Other templates convert an object to JSON, or loop over it.
    """
    uses = [node for kind in (nodes.Getattr, nodes.Getitem) for node in tree.find_all(kind) if _is_arguments(node)]
    printing = [*tree.find_all(nodes.Add), *tree.find_all(nodes.Concat), *tree.find_all(nodes.Output)]
    printed = [child for node in printing for child in node.iter_child_nodes() if _is_arguments(child)]
    tested = [test.node for test in tree.find_all(nodes.Test) if _is_arguments(test.node)]
    asks = any(test.name in ("string", "mapping") and _is_arguments(test.node) for test in tree.find_all(nodes.Test))
    return bool(printed) and not asks and len(printed) + len(tested) == len(uses)


def strings_looked_for(tree: nodes.Template) -> frozenset[str]:
    """Return the strings that a template compares, or passes to methods (`split`, `startswith`) and filters."""
    places: list[nodes.Node] = [*tree.find_all(nodes.Compare)]
    places += [node for call in tree.find_all(nodes.Call) if isinstance(call.node, nodes.Getattr) for node in call.args]
    places += [node for one in tree.find_all(nodes.Filter) for node in one.args]
    found = {place.value for place in places if isinstance(place, nodes.Const)}
    found |= {const.value for place in places for const in place.find_all(nodes.Const)}
    return frozenset(value for value in found if isinstance(value, str))


def changes_text(tree: nodes.Template) -> bool:
    """Return whether a template may change texts in the middle, so that separate pieces of a text are joined."""
    methods = [call.node for call in tree.find_all(nodes.Call) if isinstance(call.node, nodes.Getattr)]
    filters = [*tree.find_all(nodes.Filter)]
    used = {one.attr for one in methods if not isinstance(one.node, nodes.Const)}  # a text of the template's own
    used |= {one.name for one in filters if not isinstance(one.node, nodes.Const)}
    used |= {one.value for by in filters if by.name == "map" for one in by.args if isinstance(one, nodes.Const)}
    used |= {one.attr for one in methods if one.attr == "join"}
    looped = {
        call.node.attr
        for loop in tree.find_all(nodes.For)
        for call in nodes.List([loop.iter]).find_all(nodes.Call)
        if isinstance(call.node, nodes.Getattr)
    }
    breaks = not _BREAKING.isdisjoint(looped) or ("join" in used and not _BREAKING.isdisjoint(used))
    return breaks or not _CHANGING.isdisjoint(used)


def _is_content(node: nodes.Node | None, names: set[str]) -> bool:
    while isinstance(node, nodes.Filter):  # as in `content | selectattr(...)`
        node = node.node
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return isinstance(node, nodes.Name) and node.name in names


def _is_arguments(node: nodes.Node) -> bool:
    if isinstance(node, nodes.Getattr):
        return node.attr == "arguments"
    return isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and node.arg.value == "arguments"
