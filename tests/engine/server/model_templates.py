"""Short chat templates in the formats that the model families document."""

from __future__ import annotations

# ChatML without tools, as SmolLM2-Instruct has it.
CHATML = """\
{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}\
{{ '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}{% endif %}\
{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

# Qwen: tools in the system turn, arguments turned into JSON by the template.
QWEN = """\
<|im_start|>system
{{ messages[0].content if messages[0].role == 'system' else 'You are helpful.' }}
{%- if tools %}


# Tools
<tools>
{%- for tool in tools %}{{ "\n" }}{{ tool | tojson }}{% endfor %}

</tools>
{%- endif %}<|im_end|>
{% for message in messages if message.role != 'system' %}
{%- if message.role == 'tool' %}
<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% else %}
<|im_start|>{{ message.role }}
{%- if message.content %}{{ "\n" }}{{ message.content }}{% endif %}
{%- for call in message.tool_calls or [] %}

<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% elif think_now is defined %}<think>
{% endif %}{% endif %}"""

# Llama 3: one call per message, as JSON with parameters; results from "ipython".
LLAMA3 = """\
{{- bos_token }}
{%- if not tools is defined %}{% set tools = none %}{% endif %}
{%- for message in messages %}
{%- if message.tool_calls %}
{%- if message.tool_calls | length != 1 %}{{ raise_exception('one call only') }}{% endif %}
{%- set call = message.tool_calls[0].function %}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{{- '{"name": "' + call.name + '", "parameters": ' }}{{ call.arguments | tojson }}{{ '}<|eot_id|>' }}
{%- elif message.role == 'tool' %}
{{- '<|start_header_id|>ipython<|end_header_id|>\n\n' + message.content + '<|eot_id|>' }}
{%- else %}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' }}
{%- if tools and message.role == 'user' and loop.last %}{% for tool in tools %}{{ tool | tojson(indent=4) + '\n\n' }}
{%- endfor %}{% endif %}
{{- message.content + '<|eot_id|>' }}
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""

# Mistral: calls as a JSON list of whole functions, ids of nine characters.
MISTRAL = """\
{{- bos_token }}{% for message in messages %}
{%- if message.tool_calls %}[TOOL_CALLS][
{%- for call in message.tool_calls %}
{%- if call.id | length != 9 %}{{ raise_exception('ids of length 9') }}{% endif %}
{%- set out = call.function | tojson %}{{ out[:-1] + ', "id": "' + call.id + '"}' }}{{ ', ' if not loop.last }}
{%- endfor %}]{{ eos_token }}
{%- elif message.role == 'tool' %}[TOOL_RESULTS]{"content": {{ message.content }}}[/TOOL_RESULTS]
{%- elif message.role == 'user' %}
{%- if tools and loop.last %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}
{{- '[INST]' + message.content + '[/INST]' }}
{%- else %}{{ message.content }}{{ eos_token }}{% endif %}{% endfor %}"""

# DeepSeek V3: texts are joined, so that arguments must be text; content None before calls.
DEEPSEEK = """\
{{- bos_token }}{% if tools %}{{ tools | tojson }}{% endif %}{% for message in messages %}
{%- if message['role'] == 'user' %}{{ '<｜User｜>' + message['content'] }}
{%- elif message['role'] == 'tool' %}{{ '<｜tool▁outputs▁begin｜>' + message['content'] + '<｜tool▁outputs▁end｜>' }}
{%- elif message['tool_calls'] %}
{{- '<｜Assistant｜>' }}{% if message['content'] is not none %}{{ message['content'] }}{% endif %}
{{- '<｜tool▁calls▁begin｜>' }}{% for call in message['tool_calls'] %}
{{- '<｜tool▁call▁begin｜>' + call['type'] + '<｜tool▁sep｜>' + call['function']['name'] + '\n```json\n' }}
{{- call['function']['arguments'] + '\n```<｜tool▁call▁end｜>' }}{% endfor %}{{ '<｜tool▁calls▁end｜>' + eos_token }}
{%- elif message['content'] is not none %}{{ '<｜Assistant｜>' + message['content'] + eos_token }}
{%- endif %}{% endfor %}{% if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}"""

# Qwen3-Coder: calls and arguments in tags, and a value that is no text as Python writes it.
QWEN3_CODER = """\
{% if tools %}<|im_start|>system
{% for tool in tools %}<function>{{ tool.function.name }}</function>
{% endfor %}Reply with <tool_call>
<function=name>
<parameter=key>
value
</parameter>
</function>
</tool_call><|im_end|>
{% endif %}{% for message in messages %}{{ '<|im_start|>' + message.role }}
{%- if message.tool_calls %}{% if message.content is string and message.content %}
{{- '\n' + message.content }}{% endif %}
{%- for call in message.tool_calls %}{{ '\n<tool_call>\n<function=' + call.function.name + '>\n' }}
{%- for key, value in call.function.arguments | items %}
{%- set text = value | tojson if value is mapping or (value is sequence and value is not string) else value | string %}
{{- '<parameter=' + key + '>\n' + text + '\n</parameter>\n' }}
{%- endfor %}{{ '</function>\n</tool_call>' }}{% endfor %}
{%- else %}{{ '\n' + message.content }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

# GLM-4.5: a call as its name, then keys and values in tags; null as a content is written "None".
GLM = """\
[gMASK]<sop>{% if tools %}<|system|>
{% for tool in tools %}{{ tool | tojson(ensure_ascii=False) }}
{% endfor %}{% endif %}{% for message in messages %}
{%- if message.role == 'tool' %}<|observation|>
<tool_response>
{{ message.content }}
</tool_response>
{%- else %}{{ '<|' + message.role + '|>' }}
{%- if message.role == 'assistant' %}{{ '\n<think></think>' }}{% endif %}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
{{- '\n<tool_call>' + call.function.name }}
{% for key, value in call.function.arguments.items() %}<arg_key>{{ key }}</arg_key>
<arg_value>{{ value | tojson(ensure_ascii=False) if value is not string else value }}</arg_value>
{% endfor %}</tool_call>{% endfor %}{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
KNOWING = {
    "qwen": QWEN,
    "llama3": LLAMA3,
    "mistral": MISTRAL,
    "deepseek": DEEPSEEK,
    "qwen3-coder": QWEN3_CODER,
    "glm": GLM,
}
