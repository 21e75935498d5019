"""Templates that would take all of a machine's time or memory end soon with an error, using little memory."""

from __future__ import annotations

import resource
import time

import pytest

from inflight.text import ChatTemplate, ChatTemplateError, Conversation
from inflight.text.template_budget import RenderLimits

from .test_chat import TEMPLATES, TOOLS, user

DOUBLED = "{% set ns = namespace(x=['a']) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
GROWN = "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = GROW %}{% endfor %}{{ ns.x }}"
TIMES = "{% for a in range(99999) %}{% for b in range(99999) %}BODY{% endfor %}{% endfor %}"
LOOPED = "{% set x = 'a' * 2**22 %}{% set z = x + '' %}{% for a in range(99999) %}BODY{% endfor %}"
HOSTILE = {
    "product": "{{ 'a' * 10**10 }}",
    "product of lists": "{{ ([1] * 10**9) | length }}",
    "power": "{{ 10 ** (10 ** 10) }}",
    "squares": "{% set ns = namespace(x=3) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "sum of texts": GROWN.replace("GROW", "ns.x + ns.x"),
    "joined texts": GROWN.replace("GROW", "ns.x ~ ns.x"),
    "formatted": GROWN.replace("GROW", "'%s%s' % (ns.x, ns.x)"),
    "formatted by filter": GROWN.replace("GROW", "'%s%s' | format(ns.x, ns.x)"),
    "formatted by name": GROWN.replace("GROW", "'%(a)s%(a)s' % {'a': ns.x}"),
    "formatted with braces": GROWN.replace("GROW", "'{0}{0}'.format(ns.x)"),
    "formatted by a mapping": GROWN.replace("GROW", "'{a}{a}'.format_map({'a': ns.x})"),
    "replaced": GROWN.replace("GROW", "ns.x.replace('a', ns.x)"),
    "replaced by filter": GROWN.replace("GROW", "ns.x | replace('', ns.x)"),
    "joined": GROWN.replace("GROW", "ns.x.join([ns.x, ns.x])"),
    "joined by filter": GROWN.replace("GROW", "[ns.x, ns.x] | join(ns.x)"),
    "joined in a block": GROWN.replace(
        "{% set ns.x = GROW %}", "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}"
    ),
    "translated": GROWN.replace("GROW", "ns.x.translate({97: ns.x, 98: ns.x})"),
    "a width": "{{ '%10000000000d' % 1 }}",
    "a width given": "{{ '%*d' % (10**10, 1) }}",
    "a precision": "{{ '%.10000000000f' % 1 }}",
    "a width in braces": "{{ '{:10000000000}'.format(1) }}",
    "a width in nested braces": "{{ '{:{}}'.format(1, 9**10) }}",
    "ljust": "{{ 'a'.ljust(10**10) }}",
    "zfill": "{{ 'a'.zfill(10**10) }}",
    "expandtabs": "{{ '\t\t'.expandtabs(2**24) }}",
    "center": "{{ 'a' | center(10**10) }}",
    "indent": "{{ ('a\n' * 1000) | indent(2**20) }}",
    "indent by text": "{{ ('a\n' * 10000) | indent('a' * 10000) }}",
    "json": "{{ [[[1]] * 1000] | tojson(indent=2**20) }}",
    "bytes": "{{ (1).to_bytes(10**10, 'big') | length }}",
    "round": "{{ 1.5 | round(10**9, 'ceil') }}",
    "split": "{{ ('a ' * 2**22).split() | length }}",
    "splitlines": "{{ ('\n' * 2**22).splitlines() | length }}",
    "list": "{{ ('a' * 2**22) | list | length }}",
    "loops": TIMES.replace("BODY", ""),
    "loops with a test": "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
    "loops of filters": "{% for a in range(99999) %}{{ range(99999) | sum }}{% endfor %}",
    "loops of lists": "{% for a in range(99999) %}{% set x = range(99999) | list %}{% endfor %}",
    "loops of maps": "{% for a in range(99999) %}{{ range(99999) | map('string') | join | length }}{% endfor %}",
    "loops of text": TIMES.replace("BODY", "text " * 1000),
    "loops of long texts": "{% set x = 'a' * 2**23 %}{% for a in range(99999) %}{% set y = x.upper() %}{% endfor %}",
    "loops of prints": "{% set x = 'a' * 2**23 %}{% for a in range(99999) %}{{ x }}{% endfor %}",
    "prints in a macro": "{% set x = 'a' * 2**23 %}{% macro m() %}{% for a in range(999) %}{{ x }}{% endfor %}"
    "{% endmacro %}{% set y = m() %}",
    "a macro that calls itself": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}"
    "{{ m(60) }}",
    "a macro without end": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "a recursive loop": "{% for a in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}",
    "blocks": "{% block a %}{{ self.b() }}{{ self.b() }}{% endblock %}{% block b %}{{ self.a() }}{% endblock %}",
    "lists of lists printed": DOUBLED + "{{ ns.x }}",
    "lists of lists as json": DOUBLED + "{{ ns.x | tojson }}",
    "lists of lists compared": DOUBLED + "{{ ns.x == ns.x[0] }}",
    "mappings of mappings": DOUBLED.replace("[ns.x, ns.x]", "{'a': ns.x, 'b': ns.x}") + "{{ ns.x }}",
    "mappings made": DOUBLED.replace("[ns.x, ns.x]", "dict(a=ns.x, b=ns.x)") + "{{ ns.x }}",
    "tuples as keys": DOUBLED.replace("['a']", "'a'").replace("[ns.x, ns.x]", "(ns.x, ns.x)") + "{{ {}.get(ns.x) }}",
    "a namespace of itself": "{% set n = namespace() %}{% set m = [n, n] %}{% set n.x = m %}{{ m * 2**22 }}",
    "endless text": "{{ lipsum(n=10**9) }}",
    "batches": "{{ [1] | batch(10**9, 1) | list }}",
    "a width behind a name with brackets": "{{ '%(a(b))9999999999s' % {'a(b)': 'x'} }}",
    "many widths of one value": "{{ ('%(a)9999s' * 300000) % {'a': 'x'} }}",
    "many small widths": "{{ ('%(a)999s' * 300000) % {'a': 'x'} }}",
    "many fields": "{{ ('%s' * 2**23) % ('a',) }}",
    "a width behind a brace": "{{ '{0[}]:9999999999}'.format({'}': 'a'}) }}",
    "a width as text": "{{ '{:{}}'.format('a', '9999999999') }}",
    "a width in a list": "{{ '{:{1[0]}}'.format('a', [9999999999]) }}",
    "methods of safe text": "{{ ('a' | safe).ljust(10**10) }}",
    "replace of safe text": "{{ (('a' * 2**20) | safe).replace('a', 'b' * 16000) }}",
    "format of safe text": "{{ ('{:9999999999}' | safe).format('a') }}",
    "replace of escaped text": "{{ ('a' * 2**20) | escape | replace('a', 'b' * 16000) }}",
    "autoescape": "{% autoescape true %}{{ ('a' | safe).ljust(10**10) }}{% endautoescape %}",
    "indent of other ends of lines": "{{ ('a\\r' * 1000000) | indent('x' * 16000) }}",
    "replaced by names": "{{ ('a' * 1000000) | replace(new='b' * 16000, old='a') }}",
    "separators by place": "{{ ([1] * 1000) | tojson(false, none, ('x' * 2**20, ':')) }}",
    "joined by attribute": "{% set ns = namespace(t='x' * 2**20) %}{{ ([ns] * 1000) | join('', attribute='t') }}",
    "sorted by attribute": "{% set ns = namespace(t='x' * 2**20) %}{{ ([ns] * 1000) | sort(attribute='t') | length }}",
    "joined by a list": "{{ [1, 2] | join(['a' * 2**20] * 1000) }}",
    "lists of long texts refused": "{{ raise_exception(['a' * 2**20] + ['a' * 2**20] * 15 + ['a' * 2**20]) }}",
    "lists of long texts in errors": "{% set x = ['a' * 2**23] %}{{ {}[x + x + x].a }}",
    "tuples looked up": "{% set x = (1,) * 2**19 %}{% for a in range(99999) %}{% set y = {}[x] %}{% endfor %}",
    "dates": "{{ strftime_now('%5000d' * 2000000) }}",
    "long numbers": "{{ (('1' * 2**24) | int(0, 2)) // (('1' * 2**23) | int(0, 2)) }}",
    "numbers from bytes": "{{ (0).from_bytes([1] * 2**20, 'big') }}",
    "long numbers written": "{{ 0xFFFF // 0x" + "F" * 4000 + " }}",
    "a wide title": "{{ ('ab-' * 2**22) | title | length }}",
    "searched from behind": "{{ ('a' * 2**23).rfind('b' + 'a' * 2**22) }}",
    "stripped of long texts": "{{ ('a' * 2**23).strip('b' * 2**22 + 'a') }}",
    "trimmed of long texts": "{{ ('a' * 2**23) | trim('b' * 2**22 + 'a') }}",
    "a budget given back": "{% set x = [-2**90] | map(' spend') | list %}{% for a in range(99999) %}"
    "{% set y = 'a' * 2**20 %}{% endfor %}",
    "loops of searches": LOOPED.replace("BODY", "{% set y = 'b' in x %}"),
    "loops of searches by a test": LOOPED.replace("BODY", "{% set y = 'b' is in x %}"),
    "loops of tests": LOOPED.replace("BODY", "{% set y = x is lower %}"),
    "loops of comparisons": LOOPED.replace("BODY", "{% set y = x == z %}"),
    "loops of slices": LOOPED.replace("BODY", "{% set y = x[1:] %}"),
    "loops of slices of lists": LOOPED.replace("'a' * 2**22", "[1] * 2**20").replace("BODY", "{% set y = x[1:] %}"),
    "loops of keys": LOOPED.replace("BODY", "{% set y = {}.fromkeys(x) %}"),
    "loops of keys of dict": LOOPED.replace("BODY", "{% set y = dict.fromkeys(x) %}"),
    "loops over text with a test": LOOPED.replace("BODY", "{% for c in x if false %}{% endfor %}"),
    "lazy filters": LOOPED.replace(
        "BODY", "{% set y = range(99999) | map(attribute='a') | map(attribute='a') | last %}"
    ),
    "long attributes": "{{ range(99999) | map(attribute='a.' * 2**20) | list | length }}",
    "changes looked for": LOOPED.replace("'a' * 2**22", "['a'] * 2**19").replace("BODY", "{{ loop.changed(x) }}"),
    "values written": "{% set x = ['a' * 2**20] * 4 %}{% set d = {1: x, 2: x, 3: x, 4: x} %}{{ d.values() }}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_are_stopped(name: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    with pytest.raises(ChatTemplateError) as refused:
        ChatTemplate(HOSTILE[name]).render(Conversation(user("a")))
    assert len(str(refused.value)) < 400
    assert time.process_time() - started < 10  # a second, on a machine with nothing else to do
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000  # KiB


@pytest.mark.parametrize(
    ("source", "written"),
    [
        ("{{ '%s: %-5s|%.2f %d%%' % ('a', 'b', 1.234, 7) }}", "a: b    |1.23 7%"),
        ("{{ '%(a)s %(a)03d' % {'a': 7} }} {{ '%s-%s' | format(1, 2) }}", "7 007 1-2"),
        ("{{ '{} {}'.format(1, 'b') }} {{ '{0}{a:>4}{{}}'.format(1, a='b') }}", "1 b 1   b{}"),
        ("{{ '{:,} {:.1f} {:*^5}'.format(1234567, 2.25, 'a') }}", "1,234,567 2.2 **a**"),
        ("{{ [{'a': {'b': 1}}, {'a': {'b': 2}}] | join(', ', attribute='a.b') }}", "1, 2"),
        ("{{ [{'a': 2}, {'a': 1}] | sort(attribute='a') | map(attribute='a') | join }}", "12"),
        ("{{ [3, 1, 2] | select('in', [1, 2]) | list }} {{ ['a', 'b'] | reverse | list }}", "[1, 2] ['b', 'a']"),
        ("{{ ('<a>' | safe + '<b>').replace('<', '[') }} {{ '<' | e }}", "[a>[b> &lt;"),
        ("{{ 'a-b c' | title }} {{ ' xax ' | trim('x ') }} {{ 'a' in {'a': 1}.keys() }}", "A-B C a True"),
        ("{{ 'abc'[::-1] }} {{ [1, 2, 3][1:] }} {{ 1 in range(3) }} {{ 2.0.is_integer() }}", "cba [2, 3] True True"),
        ("{{ 'a\\nb' | indent(2) }} {{ {'b': 1} | items | list }}", "a\n  b [('b', 1)]"),
        ("{{ strftime_now('%d %b %Y, %-H%%') | length > 12 }}", "True"),
    ],
)
def test_what_templates_commonly_do_is_allowed(source: str, written: str) -> None:
    assert ChatTemplate(source).render(Conversation(user("a"))) == written


@pytest.mark.parametrize("source", ["{{ raise_exception('a' * 9999) }}", "{{ {}['a' * 9999].a }}"])
def test_what_a_template_says_is_cut(source: str) -> None:
    with pytest.raises(ChatTemplateError) as refused:
        ChatTemplate(source).render(Conversation(user("a")))
    assert 500 < len(str(refused.value)) < 700


def test_errors_name_the_limits() -> None:
    limits = RenderLimits(characters=1000, work=5000, items=100)

    def error_of(source: str) -> str:
        with pytest.raises(ChatTemplateError) as error:
            ChatTemplate(source, limits=limits).render(Conversation(user("a" * 600)))
        return str(error.value)

    assert "makes a text of 1,200 characters" in error_of("{{ messages[0].content }}{{ messages[0].content }}")
    assert "at most 1,000 are allowed" in error_of("{{ messages[0].content + messages[0].content }}")
    assert "takes more than 5,000 steps" in error_of("{% for a in range(9999) %}{% endfor %}")
    assert "makes a list of 101 entries" in error_of("{{ range(101) | list }}")
    assert "asks for 2,000 of something" in error_of("{{ 'a' | center(2000) }}")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ (" * 3000, "has an error|cannot be compiled"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "cannot be compiled"),
        ("{% if a %}" * 3000 + "{% endif %}" * 3000, "cannot be compiled"),
        ("a" * (2**18 + 1), "has 262,145 characters, and at most 262,144 are compiled"),
        ("{{ 'a' | nonsense }}", "has an error in line 1: No filter named 'nonsense'"),
    ],
)
def test_templates_that_cannot_be_compiled(source: str, message: str) -> None:
    with pytest.raises(ChatTemplateError, match=message):
        ChatTemplate(source).compile()


@pytest.mark.parametrize("template", TEMPLATES)
def test_published_templates_need_little_of_their_limits(template: str) -> None:
    """A thousand turns, and a prompt of a megabyte, are far from the defaults."""
    limits = RenderLimits(characters=2**23, work=RenderLimits().work * 2 // 5)
    one = ChatTemplate(TEMPLATES[template], {"bos_token": "<s>", "eos_token": "</s>"}, limits)
    turns = [message for _ in range(500) for message in (*user("why? " * 20), {"role": "assistant", "content": "so"})]
    one.render(Conversation(turns, {"date_string": "1 May"}, tools=TOOLS))
    one.render(Conversation([*user("words " * 200_000)], {"date_string": "1 May"}, tools=TOOLS))
