"""Chat templates of our own, of the constructs that families published later are built of (`test_family_templates`)."""

from __future__ import annotations

EXAONE4 = """\
{%- set marks = {'user': '[|user|]\n', 'assistant': '[|assistant|]\n',
    'system': '[|system|]\n', 'tool': '[|tool|]\n'} %}
{%- set end = '[|endofturn|]\n' %}
{%- macro available(tools) %}
    {{- "# Available Tools\n" }}
    {%- for tool in tools %}
        {{- "<tool>" }}{{- tool | tojson(ensure_ascii=False) | safe }}{{- "</tool>\n" }}{%- endfor %}
{%- endmacro %}
{%- set ns = namespace(last=messages|length - 1) %}
{%- for message in messages %}
    {%- if message.role == "user" and message.content is string %}{%- set ns.last = loop.index0 -%}{%- endif %}
{%- endfor %}
{%- for i in range(messages | length) %}
    {%- set msg = messages[i] %}
    {%- set role = msg.role %}
    {%- if role not in marks %}{{- raise_exception('Unknown role: ' ~ role) }}{%- endif %}
    {%- if i == 0 %}
        {%- if role == 'system' %}
            {{- marks['system'] }}{{- msg.content }}
            {%- if tools is defined and tools %}{{- '\n\n' }}{{- available(tools) }}{%- endif %}
            {{- end -}}
            {%- continue %}
        {%- elif tools is defined and tools %}
            {{- marks['system'] }}{{- available(tools) }}{{- end -}}
        {%- endif %}
    {%- endif %}
    {%- if role == 'assistant' %}
        {{- marks['assistant'] }}
        {%- if msg.content %}
            {%- if "</think>" in msg.content %}
                {%- set content = msg.content.split('</think>')[-1].strip() %}
                {%- set reasoning = msg.content.split('</think>')[0].strip().split('<think>')[-1].strip() %}
            {%- else %}{%- set content = msg.content %}{%- endif %}
            {%- if i > ns.last and reasoning is defined %}{{- '<think>\n' ~ reasoning ~ '\n</think>\n\n' }}
            {%- else %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}
            {{- content }}
        {%- endif %}
        {%- for call in msg.tool_calls or [] %}
            {%- set call = call.function if call.function is defined else call %}
            {{- '<tool_call>' }}{"name": "{{- call.name }}", "arguments": {{
                call.arguments | tojson(ensure_ascii=False) }}}
            {{- '</tool_call>' }}{%- if not loop.last %}{{- '\n' }}{%- endif %}
        {%- endfor %}
        {{- end -}}
    {%- elif role == "tool" %}
        {%- if i == 0 or messages[i - 1].role != "tool" %}{{- marks['tool'] }}{%- endif %}
        {{- '<tool_result>' }}{{- msg.content }}{{- '</tool_result>' }}
        {%- if loop.last or messages[i + 1].role != "tool" %}{{- end -}}{%- else %}{{- '\n' }}{%- endif %}
    {%- else %}{{- marks[role] }}{{- msg.content }}{{- end -}}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- marks['assistant'] }}
    {%- if enable_thinking is defined and enable_thinking is true %}{{- '<think>\n' }}
    {%- else %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}
{%- endif %}
"""
HUNYUAN = """\
{%- if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{%- endif %}
{%- set loop_messages = messages %}
{%- if tools %}
    {%- set weekdays = '一二三四五六日' %}
    {%- set tool_text = '可用工具：\n' + weekdays[:1] + '\n<tools>\n' %}
    {%- set ns = namespace(text=tool_text) %}
    {%- for tool in tools %}{%- set ns.text = ns.text + tool | tojson + '\n' %}{%- endfor %}
    {%- set tool_text = ns.text + '</tools>' %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set loop_messages = messages[1:] %}
    {{- '<｜hy_begin▁of▁sentence｜>' + messages[0]['content'] + (tool_text or '') + '<｜hy_place▁holder▁no▁3｜>' }}
{%- else %}
    {{- '<｜hy_begin▁of▁sentence｜>' }}{%- if tools %}{{- tool_text + '<｜hy_place▁holder▁no▁3｜>' }}{%- endif %}
{%- endif %}
{%- set ns = namespace(is_tool=false, last_user=-1, is_last_user=false) %}
{%- for message in loop_messages %}
    {%- if message['role'] == 'user' %}{%- set ns.last_user = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for message in loop_messages %}
    {%- if message['role'] == 'user' %}
        {{- '<｜hy_User｜>' + message['content'] | replace('/no_think', '') + '\n' }}
    {%- elif message['role'] == 'assistant' and message['tool_calls'] %}
        {{- '<｜hy_Assistant｜><tool_calls>' }}
        {%- for call in message['tool_calls'] %}
            {%- set arguments = call['function']['arguments'] if call['function']['arguments'] is string
                else call['function']['arguments'] | tojson %}
            {{- '\n<tool_call>' + call['function']['name'] + '\n```json\n' + arguments + '\n```\n</tool_call>' }}
        {%- endfor %}
        {{- '\n</tool_calls><｜hy_place▁holder▁no▁2｜>' }}
    {%- elif message['role'] == 'assistant' %}
        {%- set content = message['content'] %}
        {%- if '<answer>' in content and '</answer>' in content %}
            {%- set content = content.split('<answer>')[1].split('</answer>')[0].strip() %}
        {%- elif '</think>' in content and loop.index0 < ns.last_user %}
            {%- set content = (content.split('</think>') | last).lstrip() %}
        {%- endif %}
        {{- '<｜hy_Assistant｜>' + content + '<｜hy_place▁holder▁no▁2｜>' }}
    {%- elif message['role'] == 'tool' %}
        {%- set ns.is_tool = true %}
        {{- '<tool_response>' ~ message['content'] ~ '</tool_response>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt and not (enable_thinking is defined and not enable_thinking) %}
    {{- '<｜hy_Assistant｜>' }}
{%- elif add_generation_prompt %}
    {{- '<｜hy_Assistant｜><think>\n\n</think>\n' }}
{%- endif %}
"""
APERTUS = """\
{%- macro typed(spec, indent='') -%}
    {%- if spec['enum'] is defined -%}
        {%- for one in spec.enum -%}{{- one | tojson -}}{%- if not loop.last %}{{- ' | ' }}{%- endif -%}{%- endfor -%}
    {%- elif spec is mapping and spec.get('type') is sequence and spec.type is not string -%}
        {{- spec.type | map('replace', 'integer', 'number') | join(' | ') -}}
    {%- elif spec.type == 'array' -%}{{- typed(spec['items'] | default({'type': 'any'})) ~ '[]' -}}
    {%- elif spec.type == 'object' -%}
        {{- '{\n' }}
        {%- for name, inner in (spec.properties | default({})) | dictsort -%}
            {%- if inner.description is defined %}{{- indent ~ '// ' ~ inner.description ~ '\n' }}{%- endif -%}
            {{- indent ~ name ~ ('' if name in spec.required | default([]) else '?') ~ ': '
                ~ typed(inner, indent ~ '  ') }}
            {{- ',\n' if not loop.last else '\n' }}
        {%- endfor -%}
        {{- indent ~ '}' -}}
    {%- else -%}{{- {'integer': 'number', 'string': 'string', 'boolean': 'boolean'}[spec.type] | default('any') -}}
    {%- endif -%}
{%- endmacro -%}
{{- bos_token }}
{%- set first = messages[0] %}
{%- if first.role == 'system' %}
    {{- '<|system_start|>' }}
    {%- if first.content is string %}{{- first.content }}
    {%- elif first.content is mapping and first.content.text is defined %}{{- first.content.text }}{%- endif %}
    {{- '<|system_end|>' }}
    {%- set turns = messages[1:] %}
{%- else %}
    {{- '<|system_start|>You are a helpful assistant.<|system_end|>' }}
    {%- set turns = messages %}
{%- endif %}
{{- '<|developer_start|>Deliberation: '
    ~ ('enabled\n' if enable_thinking is defined and enable_thinking else 'disabled\n') }}
{%- if tools is defined and tools %}
    {{- 'Tool Capabilities:\n' }}
    {%- for tool in tools %}
        {%- set tool = tool.function %}
        {{- '// ' ~ (tool.description | default('')) ~ '\ntype ' ~ tool.name ~ ' = (_: ' }}
        {{- typed(tool.parameters | default({'type': 'object'}), '  ') ~ ') => any;\n' }}
    {%- endfor %}
{%- else %}{{- 'Tool Capabilities: disabled' }}{%- endif %}
{{- '<|developer_end|>' }}
{%- set ns = namespace(in_assistant=false, in_tool=false, ids=[]) %}
{%- for message in turns %}
    {%- if message.role == 'user' %}
        {%- if ns.in_assistant %}{{- '<|assistant_end|>' }}{%- set ns.in_assistant = false %}{%- endif %}
        {{- '<|user_start|>' ~ message.content ~ '<|user_end|>' }}
    {%- elif message.role == 'assistant' %}
        {%- if not ns.in_assistant %}{{- '<|assistant_start|>' }}{%- set ns.in_assistant = true %}{%- endif %}
        {%- if message.content %}{{- message.content }}{%- endif %}
        {%- if message.tool_calls %}
            {{- '<|tools_prefix|>[' }}
            {%- for call in message.tool_calls %}
                {%- set ns.ids = ns.ids + [call.id] %}
                {{- '{"' ~ call.function.name ~ '": ' ~ call.function.arguments | tojson ~ '}' }}
                {%- if not loop.last %}{{- ', ' }}{%- endif %}
            {%- endfor %}
            {{- ']<|tools_suffix|>' }}
        {%- endif %}
    {%- elif message.role == 'tool' %}
        {%- if not ns.in_assistant %}{{- raise_exception('Tool message outside of assistant') }}{%- endif %}
        {{- '[' ~ message.content ~ ']' }}
    {%- else %}{{- raise_exception('Invalid role: ' ~ message.role) }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant_start|>' if not ns.in_assistant else '' }}
{%- elif ns.in_assistant %}{{- '<|assistant_end|>' }}{%- endif %}
"""
DEEPSEEK = """\
{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif -%}
{% set ns = namespace(is_first=false, is_tool=false, system='', is_first_sp=true) %}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}
        {%- if ns.is_first_sp %}{% set ns.system = ns.system + message['content'] %}{% set ns.is_first_sp = false %}
        {%- else %}{% set ns.system = ns.system + '\n\n' + message['content'] %}{%- endif %}
    {%- endif %}
{%- endfor -%}
{{ bos_token }}{{ ns.system }}
{%- for message in messages %}
    {%- set content = message['content'] %}
    {%- if message['role'] == 'user' %}
        {%- set ns.is_tool = false -%}{{ '<｜User｜>' + content }}
    {%- endif %}
    {%- if message['role'] == 'assistant' and message['tool_calls'] %}
        {%- for tool in message['tool_calls'] %}
            {%- if not ns.is_first %}
                {{- '<｜Assistant｜><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' -}}
                {%- set ns.is_first = true -%}
            {%- else %}{{- '\n<｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' -}}{%- endif %}
            {{- tool['function']['name'] + '\n```json\n'
                + tool['function']['arguments']|tojson + '\n```<｜tool▁call▁end｜>' -}}
        {%- endfor %}
        {{- '<｜tool▁calls▁end｜><｜end▁of▁sentence｜>' -}}
    {%- endif %}
    {%- if message['role'] == 'assistant' and content is not none and 'tool_calls' not in message %}
        {%- if ns.is_tool %}
            {{- '<｜tool▁outputs▁end｜>' + content + '<｜end▁of▁sentence｜>' -}}
            {%- set ns.is_tool = false -%}
        {%- else %}
            {%- if '</think>' in content %}{%- set content = content.split('</think>')[-1] -%}{%- endif %}
            {{- '<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>' -}}
        {%- endif %}
    {%- endif %}
    {%- if message['role'] == 'tool' %}
        {{- '<｜tool▁outputs▁begin｜>' if not ns.is_tool else '\n' -}}{%- set ns.is_tool = true -%}
        {{- '<｜tool▁output▁begin｜>' + content + '<｜tool▁output▁end｜>' -}}
    {%- endif %}
{%- endfor -%}
{%- if ns.is_tool %}{{- '<｜tool▁outputs▁end｜>' -}}{%- endif %}
{%- if add_generation_prompt and not ns.is_tool %}{{- '<｜Assistant｜><think>\n' -}}{%- endif %}
"""
LFM2 = """\
{{- bos_token -}}
{%- set system_prompt = "" -%}
{%- set ns = namespace(system_prompt="") -%}
{%- if messages[0]["role"] == "system" -%}
    {%- set ns.system_prompt = messages[0]["content"] -%}
    {%- set messages = messages[1:] -%}
{%- endif -%}
{%- if tools -%}
    {%- set ns.system_prompt = ns.system_prompt + ("\n" if ns.system_prompt else "")
        + "List of tools: <|tool_list_start|>[" -%}
    {%- for tool in tools -%}
        {%- if tool is not string -%}{%- set tool = tool | tojson -%}{%- endif -%}
        {%- set ns.system_prompt = ns.system_prompt + tool -%}
        {%- if not loop.last -%}{%- set ns.system_prompt = ns.system_prompt + ", " -%}{%- endif -%}
    {%- endfor -%}
    {%- set ns.system_prompt = ns.system_prompt + "]<|tool_list_end|>" -%}
{%- endif -%}
{%- if ns.system_prompt -%}{{- "<|im_start|>system\n" + ns.system_prompt + "<|im_end|>\n" -}}{%- endif -%}
{%- for message in messages -%}
    {{- "<|im_start|>" + message["role"] + "\n" -}}
    {%- set content = message["content"] -%}
    {%- if content is not string -%}{%- set content = content | tojson -%}{%- endif -%}
    {%- if message["role"] == "tool" -%}
        {%- set content = "<|tool_response_start|>" + content + "<|tool_response_end|>" -%}
    {%- endif -%}
    {{- content + "<|im_end|>\n" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<|im_start|>assistant\n" -}}{%- endif -%}
"""
QWEN35 = """\
{%- macro shown(content, of_system=false) -%}
    {%- if content is string -%}{{- content -}}
    {%- elif content is iterable and content is not mapping -%}
        {%- for item in content -%}
            {%- if 'image' in item or 'image_url' in item or item.type == 'image' -%}
                {%- if of_system -%}{{- raise_exception('System message cannot contain images.') -}}{%- endif -%}
                {{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
            {%- elif 'text' in item -%}{{- item.text -}}
            {%- else -%}{{- raise_exception('Unexpected item type in content.') -}}{%- endif -%}
        {%- endfor -%}
    {%- elif content is none or content is undefined -%}{{- '' -}}
    {%- else -%}{{- raise_exception('Unexpected content type.') -}}{%- endif -%}
{%- endmacro -%}
{%- if not messages -%}{{- raise_exception('No messages provided.') -}}{%- endif -%}
{%- set first = shown(messages[0].content, true) | trim if messages[0].role == 'system' else '' %}
{%- if tools and tools is iterable and tools is not mapping %}
    {{- '<|im_start|>system\n# Tools\n\n<tools>' }}
    {%- for tool in tools %}{{- '\n' }}{{- tool | tojson }}{%- endfor %}
    {{- '\n</tools>\n\n<tool_call>\n<function=name>\n<parameter=one>\nvalue\n</parameter>\n</function>\n</tool_call>' }}
    {%- if first %}{{- '\n\n' + first }}{%- endif %}{{- '<|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}{{- '<|im_start|>system\n' + first + '<|im_end|>\n' }}{%- endif %}
{%- set ns = namespace(searching=true, last_query=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- if ns.searching and message.role == 'user' %}
        {%- set text = shown(message.content) | trim %}
        {%- if not (text.startswith('<tool_response>') and text.endswith('</tool_response>')) %}
            {%- set ns.searching = false %}{%- set ns.last_query = messages|length - 1 - loop.index0 %}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if ns.searching %}{{- raise_exception('No user query found in messages.') }}{%- endif %}
{%- for message in messages %}
    {%- set content = shown(message.content) | trim %}
    {%- if message.role == 'system' %}
        {%- if not loop.first %}{{- raise_exception('System message must be at the beginning.') }}{%- endif %}
    {%- elif message.role == 'user' %}{{- '<|im_start|>user\n' + content + '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}{%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\n' }}
        {%- if loop.index0 > ns.last_query %}{{- '<think>\n' + reasoning | trim + '\n</think>\n\n' }}{%- endif %}
        {{- content }}
        {%- if message.tool_calls and message.tool_calls is iterable and message.tool_calls is not mapping %}
            {%- for call in message.tool_calls %}
                {%- set call = call.function if call.function is defined else call %}
                {{- ('\n\n' if content | trim else '') if loop.first else '\n' }}
                {{- '<tool_call>\n<function=' + call.name + '>\n' }}
                {%- if call.arguments is mapping %}
                    {%- for name, value in call.arguments | items %}
                        {{- '<parameter=' + name + '>\n' }}
                        {{- value if value is string else value | tojson | safe }}
                        {{- '\n</parameter>\n' }}
                    {%- endfor %}
                {%- endif %}
                {{- '</function>\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.previtem and loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' + content + '\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- else %}{{- raise_exception('Unexpected message role.') }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}
    {%- else %}{{- '<think>\n' }}{%- endif %}
{%- endif %}
"""
LATER = {
    "exaone4": EXAONE4,
    "hunyuan": HUNYUAN,
    "apertus": APERTUS,
    "deepseek": DEEPSEEK,
    "lfm2": LFM2,
    "qwen35": QWEN35,
}
