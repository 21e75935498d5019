"""Constructs of the chat templates of published families, against transformers.

Each template here is short and of our own; it uses the constructs by which the family's published one is built: turns
and roles, where the system message goes, how tools are declared, called and answered, what becomes of earlier
reasoning, dates, and what is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inflight.text import ChatTemplate, ChatTemplateError, Conversation

from .builders import write_folder
from .later_templates import LATER
from .test_chat import CONFIG, TOOLS, reference

GEMMA = """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first = messages[0]['content'] + '\n\n' -%}
    {%- else -%}
        {%- set first = messages[0]['content'][0]['text'] + '\n\n' -%}
    {%- endif -%}
    {%- set turns = messages[1:] -%}
{%- else -%}
    {%- set first = "" -%}
    {%- set turns = messages -%}
{%- endif -%}
{%- for message in turns -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\n' + (first if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}{{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- else -%}{{ raise_exception("Invalid content type") }}{%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}
"""
GEMMA4 = """\
{%- macro quoted(value) -%}
    {%- if value is string -%}{{- '<|"|>' + value + '<|"|>' -}}
    {%- elif value is boolean -%}{{- 'true' if value else 'false' -}}
    {%- elif value is mapping -%}
        {{- '{' -}}
        {%- for key, one in value | dictsort -%}
            {{- key + ':' -}}{{- quoted(one) -}}{%- if not loop.last -%},{%- endif -%}
        {%- endfor -%}
        {{- '}' -}}
    {%- elif value is sequence -%}
        {{- '[' -}}
        {%- for one in value -%}{{- quoted(one) -}}{%- if not loop.last -%},{%- endif -%}{%- endfor -%}
        {{- ']' -}}
    {%- else -%}{{- value -}}{%- endif -%}
{%- endmacro -%}
{%- macro without_thoughts(text) -%}
    {%- set ns = namespace(kept='') -%}
    {%- for part in text.split('<channel|>') -%}
        {%- set ns.kept = ns.kept + (part.split('<|channel>')[0] if '<|channel>' in part else part) -%}
    {%- endfor -%}
    {{- ns.kept | trim -}}
{%- endmacro -%}
{%- set ns = namespace(before=none) -%}
{{- bos_token -}}
{%- set thinks = enable_thinking is defined and enable_thinking -%}
{%- if thinks or tools or messages[0].role in ['system', 'developer'] -%}
    {{- '<|turn>system\n' -}}{%- if thinks -%}{{- '<|think|>' -}}{%- endif -%}
    {%- if messages[0].role in ['system', 'developer'] -%}
        {{- messages[0].content | trim -}}{%- set messages = messages[1:] -%}
    {%- endif -%}
    {%- for tool in tools or [] -%}
        {%- set function = tool.function -%}
        {{- '<|tool>declaration:' + function.name + '{description:' + quoted(function.description) -}}
        {%- for key, one in (function.parameters.properties or {}) | dictsort -%}
            {{- ',' + key + ':{type:' -}}
            {%- if one.type is string -%}{{- quoted(one.type | upper) -}}
            {%- else -%}{{- quoted(one.type | map('upper') | list) -}}{%- endif -%}{{- '}' -}}
        {%- endfor -%}
        {{- '}<tool|>' -}}
    {%- endfor -%}
    {{- '<turn|>\n' -}}
{%- endif -%}
{%- for message in messages -%}
    {%- set role = 'model' if message.role == 'assistant' else message.role -%}
    {%- if message.role == 'tool' -%}
        {{- '<|tool_response>response:' + (message.name | default('unknown', true)) -}}
        {{- '{value:' + quoted(message.content) + '}<tool_response|>' -}}{%- set ns.before = 'response' -%}
    {%- else -%}
        {%- if not (role == 'model' and ns.before == 'response') -%}{{- '<|turn>' + role + '\n' -}}{%- endif -%}
        {%- for call in message.tool_calls or [] -%}
            {{- '<|tool_call>call:' + call.function.name + quoted(call.function.arguments) + '<tool_call|>' -}}
        {%- endfor -%}
        {%- if message.content is string -%}
            {{- without_thoughts(message.content) if role == 'model' else message.content | trim -}}
        {%- endif -%}
        {%- set ns.before = 'call' if message.tool_calls else 'text' -%}
        {%- if ns.before == 'text' -%}{{- '<turn|>\n' -}}{%- endif -%}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt and ns.before not in ['response', 'call'] -%}
    {{- '<|turn>model\n' -}}{%- if not thinks -%}{{- '<|channel>thought\n<channel|>' -}}{%- endif -%}
{%- endif -%}
"""
GPT_OSS = """\
{%- macro type_of(spec, required=[]) -%}
    {%- if spec.type == "array" -%}{{- type_of(spec["items"]) + "[]" -}}
    {%- elif spec.type is defined and spec.type is iterable and spec.type is not string -%}
        {{- spec.type | join(" | ") -}}
    {%- elif spec.type == "object" and spec.properties -%}
        {{- "{\n" }}
        {%- for name, inner in spec.properties.items() -%}
            {{- name }}{{- "?" if name not in (spec.required or []) }}{{- ": " }}{{ type_of(inner) }}
            {%- if not loop.last %}{{- "," }}{%- endif %}{{- "\n" }}
        {%- endfor -%}
        {{- "}" }}
    {%- elif spec.enum is defined -%}{{- '"' + spec.enum | join('" | "') + '"' -}}
    {%- else -%}{{- spec.type or "any" -}}{%- endif -%}
{%- endmacro -%}
{%- set effort = reasoning_effort if reasoning_effort is defined else "medium" -%}
{{- "<|start|>system<|message|>Current date: " + strftime_now("%Y-%m") + "\n\nReasoning: " + effort + "<|end|>" }}
{%- if messages[0].role in ("developer", "system") %}
    {%- set developer = messages[0].content %}{%- set loop_messages = messages[1:] %}
{%- else %}{%- set developer = "" %}{%- set loop_messages = messages %}{%- endif %}
{%- if developer or tools %}
    {{- "<|start|>developer<|message|>" + developer }}
    {%- for tool in tools or [] %}
        {%- set tool = tool.function %}
        {{- "// " + tool.description + "\ntype " + tool.name + " = (_: " + type_of(tool.parameters) + ") => any;" }}
    {%- endfor %}
    {{- "<|end|>" }}
{%- endif %}
{%- set last_call = namespace(name=none) %}
{%- for message in loop_messages %}
    {%- if message.role == "assistant" and "tool_calls" in message %}
        {%- set future = namespace(final=false) %}
        {%- for later in loop_messages[loop.index:] if not future.final %}
            {%- if later.role == "assistant" and "tool_calls" not in later %}{%- set future.final = true %}{%- endif %}
        {%- endfor %}
        {%- if message.reasoning_content and not future.final %}
            {{- "<|start|>assistant<|channel|>analysis<|message|>" + message.reasoning_content + "<|end|>" }}
        {%- endif %}
        {%- set last_call.name = message.tool_calls[0].function.name %}
        {{- "<|start|>assistant to=functions." + last_call.name + "<|message|>" }}
        {{- message.tool_calls[0].function.arguments | tojson }}{{- "<|call|>" }}
    {%- elif message.role == "tool" %}
        {%- if last_call.name is none %}{{- raise_exception("a tool's answer without a call") }}{%- endif %}
        {{- "<|start|>functions." + last_call.name + " to=assistant<|message|>" }}
        {{- message.content | tojson + "<|end|>" }}
    {%- else %}{{- "<|start|>" + message.role + "<|message|>" + (message.content or "") + "<|end|>" }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|start|>assistant" }}{%- endif %}
"""
GLM = """\
[gMASK]<sop>
{%- macro visible(content) -%}
    {%- if content is string -%}{{- content }}
    {%- elif content is iterable and content is not mapping -%}
        {%- for item in content -%}
            {%- if item is mapping and item.type == 'text' -%}{{- item.text }}{%- endif -%}
        {%- endfor -%}
    {%- else -%}{{- content }}{%- endif -%}
{%- endmacro -%}
{%- if tools -%}
<|system|>
# Tools
{% for tool in tools %}{{ tool | tojson(ensure_ascii=False) }}
{% endfor %}{%- endif -%}
{%- set ns = namespace(last_user=-1) %}
{%- for m in messages %}{%- if m.role == 'user' %}{% set ns.last_user = loop.index0 -%}{%- endif %}{%- endfor %}
{%- for m in messages -%}
{%- if m.role == 'user' -%}<|user|>
{{ visible(m.content) }}
{{- '/nothink' if (enable_thinking is defined and not enable_thinking) else '' -}}
{%- elif m.role == 'assistant' -%}<|assistant|>
{%- set reasoning = '' %}{%- set content = visible(m.content) %}
{%- if m.reasoning_content is string %}{%- set reasoning = m.reasoning_content %}
{%- elif '</think>' in content %}
    {%- set reasoning = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
    {%- set content = content.split('</think>')[-1].lstrip('\n') %}
{%- endif %}
{%- if loop.index0 > ns.last_user and reasoning -%}{{ '\n<think>' + reasoning.strip() + '</think>' }}{%- endif -%}
{%- if content.strip() -%}{{ '\n' + content.strip() }}{%- endif -%}
{%- for tc in m.tool_calls or [] %}
    {%- if tc.function %}{%- set tc = tc.function %}{%- endif %}
{{ '\n<tool_call>' + tc.name }}
{% set args = tc.arguments %}{% for k, v in args.items() %}
<arg_key>{{ k }}</arg_key><arg_value>{{ v if v is string else v | tojson(ensure_ascii=False) }}</arg_value>
{% endfor %}</tool_call>{% endfor %}
{%- elif m.role == 'tool' -%}
{%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|observation|>' }}{%- endif %}
{{- '\n<tool_response>\n' }}{{- visible(m.content) }}{{- '\n</tool_response>' }}
{%- else -%}<|system|>
{{ visible(m.content) }}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>
{{- '\n<think></think>' if (enable_thinking is defined and not enable_thinking) else '' -}}{%- endif -%}
"""
SMOLLM3 = """\
{%- set ns = namespace(mode="/no_think" if enable_thinking is defined and not enable_thinking else "/think") -%}
{%- if messages[0].role == "system" -%}
    {%- set system_message = messages[0].content -%}
    {%- if "/no_think" in system_message -%}{%- set ns.mode = "/no_think" -%}{%- endif -%}
    {%- set custom = system_message.replace("/no_think", "").replace("/think", "").rstrip() -%}
{%- endif -%}
{{- "<|im_start|>system\n" -}}
{{- "## Metadata\n\nKnowledge Cutoff Date: June 2025\nToday Date: " ~ strftime_now("%B %Y") ~ "\n" -}}
{{- "Reasoning Mode: " + ns.mode + "\n\n" -}}
{%- if custom -%}{{- custom + "\n\n" -}}
{%- elif ns.mode == "/think" -%}{{- "You reason first.\n\n" -}}{%- endif -%}
{%- if xml_tools or tools -%}
    {%- set ns.listed = "" -%}
    {%- for tool in xml_tools or tools -%}{%- set ns.listed = ns.listed ~ tool | string | length ~ ";" -%}{%- endfor -%}
    {{- "<tools>" + ns.listed + "</tools>" -}}
{%- endif -%}
{{- "<|im_end|>\n" -}}
{%- for message in messages -%}
    {%- set content = message.content if message.content is string else "" -%}
    {%- if message.role == "user" -%}{{ "<|im_start|>" + message.role + "\n" + content + "<|im_end|>\n" }}
    {%- elif message.role == "assistant" -%}
        {% generation %}
        {%- if ns.mode == "/think" -%}{{ "<|im_start|>assistant\n" + content.lstrip("\n") + "<|im_end|>\n" }}
        {%- else -%}{{ "<|im_start|>assistant\n" + "<think>\n\n</think>\n" + content + "<|im_end|>\n" }}{%- endif -%}
        {% endgeneration %}
    {%- elif message.role == "tool" -%}{{ "<|im_start|>user\n" + content + "<|im_end|>\n" }}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ "<|im_start|>assistant\n" }}{%- endif -%}
"""
GRANITE = """\
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] %}{%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set system_message = "Knowledge Cutoff Date: April 2024.\nToday's Date: " + strftime_now('%B, %Y') + "." %}
    {%- if tools and documents %}{%- set system_message = system_message + "\nWith tools and documents." %}
    {%- elif tools %}{%- set system_message = system_message + "\nWith tools." %}
    {%- elif documents %}{%- set system_message = system_message + "\nWith documents." %}{%- endif %}
    {%- if controls and 'citations' in controls %}{%- set system_message = system_message + '\nCite.' %}{%- endif %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- '<|start_of_role|>system<|end_of_role|>' + system_message + '<|end_of_text|>\n' }}
{%- if tools %}{{- '<|start_of_role|>tools<|end_of_role|>' }}{{- tools | tojson(indent=4) }}{{- '\n' }}{%- endif %}
{%- if documents %}
    {{- '<|start_of_role|>documents<|end_of_role|>' }}
    {%- for document in documents %}
        {{- 'Document ' + loop.index | string + '\n' + document['text'] }}
        {%- if not loop.last %}{{- '\n\n' }}{%- endif %}
    {%- endfor %}
{%- endif %}
{%- for message in loop_messages %}
    {{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' + (message['content'] or '') }}
    {{- '<|end_of_text|>\n' }}
    {%- if loop.last and add_generation_prompt %}{{- '<|start_of_role|>assistant' }}
        {%- if controls %}{{- ' ' + controls | tojson() }}{%- endif %}{{- '<|end_of_role|>' }}{%- endif %}
{%- endfor %}
"""
PHI = """\
{% for message in messages %}{% if message['role'] == 'system' and tools is not none %}\
{{ '<|' + message['role'] + '|>' + message['content'] + '<|tool|>' + tools | tojson + '<|/tool|>' + '<|end|>' }}\
{% elif message['content'] is not none %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}\
{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}"""
OLMO = """\
{%- set has_system = messages|selectattr('role', 'equalto', 'system')|list|length > 0 -%}
{%- if not has_system -%}{{- '<|im_start|>system\nYou are helpful. ' -}}
    {%- if tools is none -%}{{- 'You have no functions.<|im_end|>\n' -}}
    {%- else -%}{{- 'You have functions. <functions>' + tools | tojson + '</functions><|im_end|>\n' -}}{%- endif -%}
{%- endif -%}
{%- for message in messages -%}
    {%- if message['role'] == 'assistant' -%}
        {{- '<|im_start|>assistant\n' -}}
        {%- if message.get('content', none) is not none -%}{{- message['content'] -}}{%- endif -%}
        {%- if message.get('tool_calls', none) is not none -%}
            {{- '<function_calls>' + message.tool_calls | map(attribute='function.name') | join(', ') -}}
            {{- '</function_calls>' -}}
        {%- endif -%}
        {{- ('<|im_end|>\n' if not loop.last else eos_token) -}}
    {%- elif message['role'] in ['user', 'system'] -%}
        {{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' -}}
    {%- else -%}{{- '<|im_start|>environment\n' + message['content'] + '<|im_end|>\n' -}}{%- endif -%}
    {%- if loop.last and add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
{%- endfor -%}
"""
COHERE = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}\
{% set system_message = messages[0]['content'] %}{% elif false == true %}{% set loop_messages = messages %}\
{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}\
{%- macro json_to_python_type(spec) %}
{%- set basic = {"string": "str", "number": "float", "integer": "int", "boolean": "bool"} %}
{%- if basic[spec.type] is defined %}{{- basic[spec.type] }}
{%- elif spec.type == "array" %}{{- "List[" + json_to_python_type(spec['items']) + "]" }}
{%- elif spec.type is iterable and spec.type is not string %}{{- "Union[" }}
{%- for t in spec.type %}{{- json_to_python_type({"type": t}) }}{{- "," if not loop.last }}{%- endfor %}
{{- "]" }}{%- else %}{{- "Any" }}{%- endif %}
{%- endmacro %}
{%- for tool in tools or [] %}
{%- if tool.function is defined %}{%- set tool = tool.function %}{%- endif %}
{{- '\ndef ' + tool.name + '(' }}
{%- for name, fields in (tool.parameters.properties or {})|dictsort %}
{{- name + ': ' + json_to_python_type(fields) }}{{- ', ' if not loop.last }}
{%- endfor %}{{- ') -> List[Dict]:' }}
{%- endfor %}
{% if system_message != false %}{{ '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>' + system_message | trim }}{% endif %}\
{% for message in loop_messages %}{% set content = message['content'] %}\
{% if message['role'] == 'user' %}{{ '<|USER_TOKEN|>' + content.strip() + '<|END_OF_TURN_TOKEN|>' }}\
{% elif message['role'] == 'assistant' and content %}{{ '<|CHATBOT_TOKEN|>' + content.strip() }}{% endif %}\
{% endfor %}{% if add_generation_prompt %}{{ '<|CHATBOT_TOKEN|>' }}{% endif %}"""
SEED = """\
{%- set py2js = {"str": "string", "int": "integer"} -%}
{%- macro budget_line(budget) -%}
    {%- if budget == 0 -%}none{%- else -%}{{ budget }} tokens, half {{ [512, budget // 2] | min }}{%- endif -%}
{%- endmacro -%}
{%- if thinking_budget is defined -%}{{ bos_token + budget_line(thinking_budget) + eos_token }}{%- endif -%}
{%- for message in messages if message.role != 'tool' -%}
    {{ bos_token + message.role + '\n' }}{{ py2js.get(message.role, '') }}
    {%- for call in message.tool_calls | default([], true) -%}
        <seed:function={{ call.function.name }}>
        {%- for key, value in call.function.arguments | items -%}
            {%- if value is mapping or (value is sequence and value is not string) -%}
                {{ key }}={{ value | tojson(ensure_ascii=false) }}
            {%- else -%}{{ key }}={{ value }}{%- endif -%}
        {%- endfor -%}
    {%- else -%}{{ message.content | trim }}{%- endfor -%}{{ eos_token }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ bos_token }}assistant{{ "\n" }}{%- endif -%}
"""
ERNIE = """\
{%- if not add_generation_prompt is defined -%}{%- set add_generation_prompt = true -%}{%- endif -%}
{%- if not cls_token is defined -%}{%- set cls_token = "<|begin_of_sentence|>" -%}{%- endif -%}
{{- cls_token -}}
{%- for message in messages -%}
    {%- if message["role"] == "user" -%}{{- "User: " + message["content"] + "\n" -}}
    {%- elif message["role"] == "assistant" and message["content"] -%}
        {{- "Assistant: " + message["content"] + "<|end_of_sentence|>" -}}
    {%- elif message["role"] == "system" -%}{{- message["content"] + "\n" -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "Assistant: " -}}{%- endif -%}
"""
MISTRAL = """\
{%- set today = strftime_now("%Y-%m") %}
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}{%- set loop_messages = messages[1:] %}
{%- else %}{%- set system_message = "Today is " + today %}{%- set loop_messages = messages %}{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace(index=0) %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, roles must alternate") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token + "[SYSTEM_PROMPT]" + system_message + "[/SYSTEM_PROMPT]" }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS][" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}{{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}{{- '"' + key + '": "' + val + '"' }}
                    {%- else %}{{- '"' + key + '": ' + val|tojson }}{%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}{{- "}}" }}{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}{{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {{- "[INST]" + message["content"] + "[/INST]" }}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}{{- "[TOOL_CALLS]" + out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
            {%- endif %}{{- ', "id": "' + tool_call.id + '"}' }}
        {%- endfor %}{{- eos_token }}
    {%- elif message["role"] == "assistant" %}{{- message["content"] + eos_token }}
    {%- elif message["role"] == "tool" %}
        {{- '[TOOL_RESULTS]{"content": ' + message.content|string + ', "id": "' + message.tool_call_id + '"}' }}
    {%- else %}{{- raise_exception("Only user and assistant roles are supported!") }}{%- endif %}
{%- endfor %}
"""
QWEN3 = """\
{%- set ns = namespace(searching=true, last_query=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" and message.content is string and not
        (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.searching = false %}{%- set ns.last_query = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {%- set content = message.content or '' %}{%- set reasoning = '' %}
        {%- if '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\n' }}
        {%- if loop.index0 > ns.last_query and (loop.last or reasoning) %}
            {{- '<think>\n' + reasoning.strip('\n') + '\n</think>\n\n' }}
        {%- endif %}
        {{- content.lstrip('\n') }}
        {%- for call in message.tool_calls or [] %}
            {%- if (loop.first and content) or (not loop.first) %}{{- '\n' }}{%- endif %}
            {{- '<tool_call>\n{"name": "' }}{{- call.function.name }}{{- '", "arguments": ' }}
            {%- if call.function.arguments is string %}{{- call.function.arguments }}
            {%- else %}{{- call.function.arguments | tojson }}{%- endif %}{{- '}\n</tool_call>' }}
        {%- endfor %}{{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- else %}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""
TEMPLATES = {
    "gemma": GEMMA,
    "gemma4": GEMMA4,
    "gpt_oss": GPT_OSS,
    "glm": GLM,
    "smollm3": SMOLLM3,
    "granite": GRANITE,
    "phi": PHI,
    "olmo": OLMO,
    "cohere": COHERE,
    "seed": SEED,
    "ernie": ERNIE,
    "mistral": MISTRAL,
    "qwen3": QWEN3,
    **LATER,
}
CALL = {
    "id": "abcdefghi",
    "type": "function",
    "function": {"name": "weather", "arguments": {"city": "Köln", "days": 2, "of": ["rain", "<sun>"]}},
}
CHATS: dict[str, list[dict[str, Any]]] = {
    "plain": [
        {"role": "user", "content": "  Was heißt 'batch'? <b>&amp;</b> 😀 "},
        {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nA set of requests."},
        {"role": "user", "content": "{{ bos_token }} {% raise %}"},
    ],
    "system": [{"role": "system", "content": "Be brief. /no_think"}, {"role": "user", "content": "Why?"}],
    "system last": [{"role": "user", "content": "Why?"}, {"role": "system", "content": "Be brief."}],
    "two users": [{"role": "user", "content": "One."}, {"role": "user", "content": "Two."}],
    "calls": [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "reasoning_content": "Ask.", "tool_calls": [CALL]},
        {"role": "tool", "content": "18 °C", "tool_call_id": "abcdefghi"},
        {"role": "tool", "content": "dry", "tool_call_id": "abcdefghi"},
        {"role": "assistant", "content": "<think>\nSo.\n</think>\n18 °C."},
    ],
    "channels": [
        {"role": "user", "content": "Why?"},
        {"role": "assistant", "content": "<|channel>thought\nHm.\n<channel|>Because. <|channel>more"},
        {"role": "user", "content": "Is it?"},
    ],
    "unasked": [{"role": "user", "content": "Hi."}, {"role": "tool", "content": "18 °C"}],
}
PARAMETERS = {
    "type": "object",
    "required": ["city"],
    "properties": {
        "city": {"type": "string"},
        "days": {"type": ["integer", "null"]},
        "of": {"type": "array", "items": {"type": "string"}},
    },
}
DETAILED = [{"type": "function", "function": {**TOOLS[0]["function"], "parameters": PARAMETERS}}]
VARIABLES: list[dict[str, Any]] = [
    {},
    {"tools": DETAILED},
    {"enable_thinking": False, "reasoning_effort": "low", "thinking_budget": 900, "controls": {"citations": True}},
    {"tools": TOOLS, "documents": [{"text": "One."}, {"text": "Zwei & drei."}]},
    {"thinking": True},
]


@pytest.mark.parametrize("variables", VARIABLES, ids=["plain", "tools", "switches", "documents", "thinking"])
@pytest.mark.parametrize("template", TEMPLATES)
def test_a_family_s_constructs_render_as_in_transformers(
    tmp_path: Path, template: str, variables: dict[str, Any]
) -> None:
    write_folder(tmp_path, None, {**CONFIG, "chat_template": TEMPLATES[template]})
    ours, theirs = ChatTemplate.load(tmp_path), reference()
    theirs.chat_template = TEMPLATES[template]
    others = {name: value for name, value in variables.items() if name != "tools"}
    rendered = 0
    for chat in CHATS.values():
        for generation in (True, False):
            conversation = Conversation(chat, others, tools=variables.get("tools"), add_generation_prompt=generation)
            try:
                expected = theirs.apply_chat_template(
                    chat, tokenize=False, add_generation_prompt=generation, **variables
                )
            except Exception:
                with pytest.raises(ChatTemplateError):
                    ours.render(conversation)
            else:
                assert ours.render(conversation) == expected
                rendered += 1
    assert rendered >= 4
