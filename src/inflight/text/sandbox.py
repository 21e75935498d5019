"""Run chat templates, which may be hostile, in sandboxed Jinja, with transformers' filters and functions."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from types import BuiltinMethodType, MethodType, ModuleType
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from inflight.text.errors import ChatTemplateError
from inflight.text.template_budget import Budget, RenderLimits
from inflight.text.template_limits import (
    before_call,
    before_case,
    before_filter,
    before_loop,
    before_method,
    before_operator,
    before_search,
)

# Names that none can write where a name stands; as a text, for `map`, they do no harm.
_BUDGET, _SPEND, _MEASURED, _SLICED = " budget", " spend", " measured", " sliced"
_LOOPED, _SEARCHED, _JOINED = " looped", " searched", " joined"
# Nothing for a prompt, and much of little: lists of lists, random or endless text, slow searches.
_TAKEN_AWAY = (
    *("batch", "slice", "groupby", "random", "urlize", "xmlattr", "pprint", "striptags", "wordwrap"),
    *("wordcount", "filesizeformat", "forceescape", "urlencode"),
)
_COMPARING = (
    *("lower", "upper", "in", "eq", "equalto", "==", "ne", "!=", "lt", "lessthan", "<", "le", "<="),
    *("gt", "greaterthan", ">", "ge", ">="),
)
_MADE_TYPES = (str, int, list, tuple, dict)
_NODES_A_UNIT, _CHARACTERS_A_UNIT = 16, 64  # of a template, run once
_FILTER_UNITS = 3
_ARGUMENTS_A_UNIT = 16
_DATE = re.compile(r"(?:[^%]|%-?[A-Za-z%]){0,200}")
_LONGEST_REFUSAL = 500  # characters of what a template says
_MACRO_UNITS = 6  # a call of a macro, which sets arguments and joins its output


def chat_environment() -> jinja2.Environment:
    """Make a sandbox with the filters and functions of chat templates; `render` renders its templates."""
    environment = _BoundedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, jinja2.ext.loopcontrols],
        finalize=_write,
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    # The built-in ones are real Python classes, with attributes that lead out of the sandbox.
    environment.globals["dict"] = _DictMaker()
    environment.globals["namespace"] = _PlainNamespace
    del environment.globals["lipsum"]
    for name in _TAKEN_AWAY:
        del environment.filters[name]
    environment.filters = {name: _bounded_filter(name, function) for name, function in environment.filters.items()}
    charges: dict[str, Callable[[Budget, Any], Any]] = {
        _SPEND: lambda budget, units: budget.spend(max(0, units)),
        _MEASURED: _measured,
        _SLICED: Budget.made,
        _LOOPED: before_loop,
        _SEARCHED: before_search,
        _JOINED: _joined,
    }
    environment.filters |= {name: _charging(charge) for name, charge in charges.items()}
    environment.tests |= {name: _bounded_test(name, environment.tests[name]) for name in _COMPARING}
    return environment


def render(template: jinja2.Template, context: Mapping[str, Any], limits: RenderLimits) -> str:
    """Run a template of this environment. Raises its errors, and ChatTemplateError beyond the limits."""
    budget = Budget(limits)
    text = template.render({**context, _BUDGET: budget})
    budget.allow(len(text))
    return text


class _BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox, in which every operation that may make a large result of a small input is charged first."""

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = _budget(context)
        before_operator(budget, operator, left, right)
        return budget.made(super().call_binop(context, operator, left, right))

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(argument, list | dict):  # no key of anything: nothing is found, as in Jinja
            return self.undefined(obj=obj, name=type(argument).__name__)
        if not isinstance(argument, str | int | float | None | slice | jinja2.Undefined):
            raise ChatTemplateError(  # long to hash, and long to report
                f"The model's chat template looks for a {type(argument).__name__} as a key; only texts and numbers are "
                "looked for; correct the template."
            )
        return super().getitem(obj, argument)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        budget = _budget(__context)
        budget.spend((len(args) + len(kwargs)) // _ARGUMENTS_A_UNIT + (_MACRO_UNITS if isinstance(__obj, Macro) else 1))
        method = getattr(__obj, "__wrapped__", __obj)  # str.format comes wrapped
        if _is_of_python(method):
            args = tuple(before_method(budget, method.__self__, method.__name__, args, kwargs))
        elif isinstance(__obj, LoopContext):
            args = tuple(before_loop(budget, one) for one in args)
        elif not isinstance(__obj, Macro):
            before_call(budget, args, kwargs)
        result = super().call(__context, __obj, *args, **kwargs)
        return budget.made(result) if isinstance(result, _MADE_TYPES) else result

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(_Rewriter(self).visit(source), *args, **kwargs)


class _Rewriter(NodeTransformer):
    """Insert charges where Jinja has no hooks: into loops, macros, literals, comparisons."""

    def __init__(self, environment: jinja2.Environment) -> None:
        self._environment = environment

    def visit_For(self, node: nodes.For) -> nodes.Node:
        body = self._toll(node.body)
        self.generic_visit(node)
        node.body = [body, *node.body]
        if node.test is not None:
            node.iter = self._asked(node.iter, _LOOPED)  # type: ignore[arg-type]  # what it leaves out passes no toll
        return node

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return node if node.ctx == "store" else self._literal(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return self._asked(nodes.List(node.nodes, lineno=node.lineno), _JOINED)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = self._asked(node.expr, _MEASURED)
        for operand in node.ops:
            operand.expr = self._asked(operand.expr, _SEARCHED if operand.op in ("in", "notin") else _MEASURED)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return self._asked(node, _SLICED) if isinstance(node.arg, nodes.Slice) else node

    def visit_ScopedEvalContextModifier(self, node: nodes.ScopedEvalContextModifier) -> nodes.Node:
        raise jinja2.TemplateSyntaxError("autoescape is for HTML, and a prompt is none", node.lineno)

    def _with_toll(self, node: Any) -> nodes.Node:
        toll = self._toll(node.body)
        self.generic_visit(node)
        node.body = [toll, *node.body]
        return node  # type: ignore[no-any-return]

    visit_Macro = visit_CallBlock = visit_Block = _with_toll

    def _literal(self, node: nodes.Expr) -> nodes.Node:
        self.generic_visit(node)
        leaves = (nodes.Const, nodes.List, nodes.Tuple, nodes.Dict, nodes.Pair, nodes.Neg)
        is_plain = all(isinstance(child, leaves) for child in node.find_all(nodes.Node))
        return node if is_plain else self._asked(node, _MEASURED)

    visit_List = visit_Dict = _literal

    def _toll(self, body: list[nodes.Node]) -> nodes.Node:
        inner = [node for statement in body for node in (statement, *statement.find_all(nodes.Node))]
        written = sum(len(node.data) for node in inner if isinstance(node, nodes.TemplateData))
        cost = 1 + len(inner) // _NODES_A_UNIT + written // _CHARACTERS_A_UNIT
        asked = self._asked(nodes.Const(cost, lineno=1), _SPEND)
        return nodes.ExprStmt(asked, lineno=1).set_environment(self._environment)

    def _asked(self, node: nodes.Expr, name: str) -> nodes.Expr:
        asked = nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)
        asked.set_environment(self._environment)
        return asked


def _is_of_python(method: Any) -> bool:
    """Return whether it is a method of a string, list or type, by its owner, since a subclass may have any methods."""
    if isinstance(method, BuiltinMethodType):
        return not isinstance(method.__self__, ModuleType)
    return isinstance(method, MethodType) and isinstance(method.__self__, str | int | float | list | tuple | dict)


def _budget(context: Context) -> Budget:
    budget: Budget = context.parent[_BUDGET]
    return budget


def _measured(budget: Budget, value: Any) -> Any:
    """Charge a list, tuple or mapping that a template writes or compares; return it."""
    budget.measure(value)
    return value


def _joined(budget: Budget, values: list[Any]) -> str:
    texts = [budget.text(value) for value in values]
    budget.allow(sum(map(len, texts)))
    joined: str = budget.made("".join(texts))
    return joined


def _charging(charge: Callable[[Budget, Any], Any]) -> Callable[[Context, Any], Any]:
    """Make a filter of what charges a value, and returns it."""

    @pass_context
    def charging(context: Context, value: Any) -> Any:
        return charge(_budget(context), value)

    return charging


@pass_context
def _write(context: Context, value: Any) -> str:
    """Convert the value of `{{ }}` to text, charged."""
    budget = _budget(context)
    text = budget.text(value)
    budget.write(len(text))
    return text


def _bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    first = getattr(function, "jinja_pass_arg", None)
    names = _arguments_of(function)

    @pass_context
    def bounded(context: Context, value: Any = None, *args: Any, **kwargs: Any) -> Any:
        budget = _budget(context)
        budget.spend(_FILTER_UNITS)
        named = {**dict(zip(names, args, strict=False)), **kwargs}
        value = before_filter(budget, name, value, named, args[len(names) :])
        if first is None:
            result = function(value, *args, **kwargs)
        else:
            given = {"context": context, "eval_context": context.eval_ctx, "environment": context.environment}
            result = function(given[first.name], value, *args, **kwargs)
        if isinstance(result, str):
            result = str(result)  # Markup would escape whatever is added to it
        elif isinstance(result, Iterator):
            return _tolled(budget, result)
        return budget.made(result) if isinstance(result, _MADE_TYPES) else result

    return bounded


def _arguments_of(function: Callable[..., Any]) -> Sequence[str]:
    """Return the names of a filter's parameters after the value; none for filters in C."""
    own = inspect.unwrap(function)  # filters that Jinja has an asynchronous form of are wrapped
    code = getattr(own, "__code__", None)
    if code is None:
        return ()
    passed = getattr(own, "jinja_pass_arg", None) is not None
    return tuple(code.co_varnames[1 + passed : code.co_argcount])


def _tolled(budget: Budget, values: Iterator[Any]) -> Iterator[Any]:
    for value in values:
        budget.spend(1)
        yield value


def _bounded_test(name: str, function: Any) -> Callable[..., Any]:
    @pass_context
    def bounded(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        budget = _budget(context)
        if name in ("lower", "upper"):
            before_case(budget, value)
        if name == "in":
            args = tuple(before_search(budget, one) for one in args)
        for one in (value, *args):
            budget.measure(one)
        return function(value, *args, **kwargs)

    return bounded


class _Generation(jinja2.ext.Extension):
    """Render `{% generation %}…{% endgeneration %}`, which marks the assistant's text for training, as its body."""

    tags = {"generation"}  # noqa: RUF012 — Jinja declares it as an attribute of the instance

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _DictMaker:
    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, keys: Any, value: Any = None) -> dict[Any, Any]:
        if isinstance(keys, str):
            raise ChatTemplateError(
                "The model's chat template makes keys of a text; correct the template to use a list."
            )
        return dict.fromkeys(keys, value)


class _PlainNamespace(Namespace):
    """Jinja's namespace without underscore names, which reach into the interpreter."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # no named self: a template may set `self`
        self, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _refuse_underscore(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_underscore(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<Namespace>"  # it may hold itself, or one list very many times


def _refuse_underscore(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace may not hold {name!r}, which begins with an underscore")


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML characters, which models have never seen in training.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(format: str) -> str:
    if not _DATE.fullmatch(format):
        raise ChatTemplateError(
            f"The model's chat template asks for the date as {format[:40]!r}; at most 200 characters, and fields "
            "of one letter, are allowed; correct the template."
        )
    return datetime.now().strftime(format)


@pass_context
def _raise_exception(context: Context, message: object) -> NoReturn:
    reason = _budget(context).text(message)[:_LONGEST_REFUSAL]
    raise ChatTemplateError(f"The model's chat template refuses these messages: {reason}")
