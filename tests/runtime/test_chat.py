"""Chat templates render as transformers renders them, nothing in one can reach the host, and messages that are wrong
are named with their place."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from bundles import ASSETS
from qpack_runtime.chat import check_messages, load_messages, render
from qpack_runtime.chat_template import TEMPLATE, Template
from qpack_schemas.errors import InputError, QpackError, UnsupportedError, UsageError

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": 'Ça va?\n"quoted" <b>& 你好'},
    {"role": "assistant", "content": "Fine."},
    {"role": "user", "content": "And {{ you }}?"},
]
PARTS = [{"role": "user", "content": [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]}]
CALL = {"name": "get_weather", "arguments": '{"city": "Tromsø", "days": 3, "exact": true, "at": [1, "é"]}'}
TOOL_TALK = [
    {"role": "user", "content": "Weather?"},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "\nI must look.\n",
        "tool_calls": [{"id": "a", "type": "function", "function": CALL}, {"id": "b", "function": CALL}],
    },
    {"role": "tool", "tool_call_id": "a", "content": "Snow"},
    {"role": "tool", "tool_call_id": "b", "content": '{"sky": "<grey>"}'},
    {"role": "assistant", "content": "Snow.", "refusal": None, "tool_calls": None},
    {"role": "user", "content": "Sure?"},
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather <today> & after.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "Ort, z. B. Köln"}},
            },
        },
    }
]
TEMPLATES = {
    "plain": "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "trimmed blocks and json": "{%- for m in messages %}\n    {%- if m.content is string %}\n  {{ m | tojson }}\n"
    "    {%- else %}\n{{ m | tojson(indent=2, sort_keys=true) }}\n    {%- endif %}\n{%- endfor %}\n"
    "{{ messages[0] | tojson(ensure_ascii=true, separators=(',', ':')) }}",
    "loop controls and namespaces": "{%- set ns = namespace(n=0) %}{%- for m in messages %}{%- set ns.n = ns.n + 1 %}"
    "{%- if m.role == 'system' %}{% continue %}{% endif %}{{ loop.index0 }}:{{ m.role.upper() }};{%- endfor %}"
    "{{ ns.n }}{{ dict(a=1) | tojson }}{% for i in range(3) %}{{ i }}{% endfor %}",
    "nothing given": "{{ tools is defined }}{{ tools is none }}{{ documents is none }}{{ enable_thinking is defined }}",
    # Qwen2.5's manner: content is a string, arguments are JSON.
    "qwen2.5": """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- endif %}
    {{- '\\n# Tools\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' ~ (tool | tojson) }}
    {%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' and message.tool_calls %}
        {{- '<|im_start|>assistant' }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for call in message.tool_calls %}
            {%- if call.function is defined %}
                {%- set call = call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
            {{- call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}""",
    # Qwen3's: thoughts of past turns are cut out, and enable_thinking is a variable.
    "qwen3": """{%- set ns = namespace(last=messages | length - 1, searching=true) %}
{%- for message in messages[::-1] %}
    {%- if ns.searching and message.role == 'user' and message.content is string %}
        {%- set ns.searching = false %}
        {%- set ns.last = messages | length - 1 - loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- set thought = '' %}
    {%- if message.reasoning_content is string %}
        {%- set thought = message.reasoning_content %}
    {%- elif '</think>' in content %}
        {%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if thought and (loop.index0 > ns.last or message.tool_calls) %}
        {{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' }}
    {%- endif %}
    {{- content }}
    {%- for call in message.tool_calls or [] %}
        {{- '\\n<tool_call>\\n{"name": "' ~ call.function.name ~ '", "arguments": ' }}
        {%- if call.function.arguments is string %}
            {{- call.function.arguments }}
        {%- else %}
            {{- call.function.arguments | tojson }}
        {%- endif %}
        {{- '}\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}""",
    # Qwen3.5's: content in parts, arguments one by one, unknown roles refused.
    "qwen3.5": """{%- macro text_of(content) %}
    {%- if content is string %}
        {{- content }}
    {%- elif content is iterable and content is not mapping %}
        {%- for item in content %}
            {%- if 'text' in item %}
                {{- item.text }}
            {%- else %}
                {{- raise_exception('Unexpected item.') }}
            {%- endif %}
        {%- endfor %}
    {%- elif content is not none and content is not undefined %}
        {{- raise_exception('Unexpected content.') }}
    {%- endif %}
{%- endmacro %}
{%- for message in messages %}
    {%- if message.role not in ['system', 'user', 'assistant', 'tool'] %}
        {{- raise_exception('Unexpected message role.') }}
    {%- endif %}
    {%- if message.role == 'system' and not loop.first %}
        {{- raise_exception('System message must be at the beginning.') }}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + text_of(message.content) | trim }}
    {%- if message.tool_calls and message.tool_calls is iterable and message.tool_calls is not mapping %}
        {%- for call in message.tool_calls %}
            {{- '\\n<tool_call>\\n<function=' + call.function.name + '>\\n' }}
            {%- for key, value in call.function.arguments | items %}
                {{- '<parameter=' + key + '>\\n' }}
                {%- if value is mapping or (value is sequence and value is not string) %}
                    {{- value | tojson | safe }}
                {%- else %}
                    {{- value | string }}
                {%- endif %}
                {{- '\\n</parameter>\\n' }}
            {%- endfor %}
            {{- '</function>\\n</tool_call>' }}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' + ('<think>\\n\\n</think>\\n\\n' if enable_thinking is false else '<think>\\n') }}
{%- endif %}""",
}
QWEN = ("qwen2.5", "qwen3", "qwen3.5")


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_file=str(ASSETS / "tiny-qwen3" / "tokenizer.json"))


def bundle_with(folder: Path, template: str) -> Path:
    (folder / TEMPLATE).parent.mkdir(parents=True)
    (folder / TEMPLATE).write_text(template, encoding="utf-8", newline="")
    return folder


def by_transformers(tokenizer: PreTrainedTokenizerFast, name: str, messages: list[Any], **given: Any) -> Any:
    return tokenizer.apply_chat_template(
        messages, chat_template=TEMPLATES[name], tokenize=False, add_generation_prompt=True, **given
    )


def with_mappings(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same messages with arguments as transformers wants them."""

    def call(of: dict[str, Any]) -> dict[str, Any]:
        return of | {"function": of["function"] | {"arguments": json.loads(of["function"]["arguments"])}}

    return [message | {"tool_calls": [call(of) for of in message.get("tool_calls") or []]} for message in messages]


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_renders_as_in_transformers(name: str, tokenizer: PreTrainedTokenizerFast, tmp_path: Path):
    assert render(bundle_with(tmp_path, TEMPLATES[name]), TALK) == by_transformers(tokenizer, name, TALK)


@pytest.mark.parametrize("name", QWEN)
@pytest.mark.parametrize("variables", [{}, {"enable_thinking": False}, {"enable_thinking": True, "unread": [1]}])
def test_tools_calls_and_variables_render_as_in_transformers(
    name: str, variables: dict[str, Any], tokenizer: PreTrainedTokenizerFast, tmp_path: Path
):
    messages = check_messages(TOOL_TALK)
    wanted = by_transformers(tokenizer, name, with_mappings(TOOL_TALK), tools=TOOLS, **variables)
    assert render(bundle_with(tmp_path, TEMPLATES[name]), messages, tools=TOOLS, variables=variables) == wanted


@pytest.mark.parametrize("name", QWEN)
def test_text_in_parts_is_what_the_template_makes_of_them_or_a_line_each(name: str, tokenizer: PreTrainedTokenizerFast):
    """vLLM's rule for templates without a loop over content; the others get the list, as in transformers."""
    joined = [{"role": "user", "content": "One.\nTwo."}]
    wanted = by_transformers(tokenizer, name, PARTS if name == "qwen3.5" else joined)
    assert Template(TEMPLATES[name]).render(PARTS) == wanted


def test_a_loop_over_content_is_seen_however_it_is_spelled():
    for place in ("m.content", "m['content']", "content"):
        loop = f"{{% for p in {place} %}}[{{{{ p.text }}}}]{{% endfor %}}"
        template = Template("{% for m in messages %}{% set content = m.content %}" + loop + "{% endfor %}")
        assert template.render(PARTS) == "[One.][Two.]"


@pytest.mark.parametrize("name", QWEN)
def test_roles_and_fields_that_qwen_does_not_know_become_those_it_knows(name: str):
    template = Template(TEMPLATES[name])
    ours = [{"role": "system", "content": "a"}, *with_mappings(TOOL_TALK[:3])]
    theirs = [
        {"role": "developer", "content": "a"},
        TOOL_TALK[0],
        {"role": "assistant", "reasoning": TOOL_TALK[1]["reasoning_content"], "function_call": CALL},
        {"role": "function", "name": "get_weather", "content": "Snow"},
    ]
    ours[2]["tool_calls"] = ours[2]["tool_calls"][:1]
    assert template.render(check_messages(theirs)) == template.render(ours)


@pytest.mark.parametrize("arguments", ["", None, {}, "{}"])
def test_no_arguments_are_an_empty_object(arguments: Any):
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}
    assert Template("{{ messages[0].tool_calls[0].function.arguments }}").render(check_messages([call])) == "{}"


@pytest.mark.parametrize("arguments", ["{", "[]", "1", "no JSON", "[" * 100_000])
def test_arguments_that_are_no_object_are_refused_with_their_place(arguments: str):
    """vLLM takes {} for what isn't JSON; here nobody's arguments are lost in silence."""
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}
    with pytest.raises(UsageError) as caught:
        Template("").render(check_messages([*TALK, call]))
    assert caught.value.where == "messages[4].tool_calls[0].function.arguments"


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "raise_exception", "range"])
def test_a_variable_takes_no_name_that_is_given(name: str):
    with pytest.raises(UsageError, match=name):
        Template("").render(TALK, variables={name: 1})


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('only one system message') }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{{ dict.update(messages[0], role='x') }}",
        "{{ undefined_function() }}",
        "{{ lipsum() }}",
        "{{ cycler(1, 2) }}",
        "{{ joiner() }}",
        "{{ range(10 ** 6) }}",
        "{% include 'other' %}",
        "{% import 'os' as os %}",
        # Attributes that lead out of the sandbox, by every way to an attribute.
        "{{ messages.__class__.__mro__[-1].__subclasses__() }}",
        "{{ messages['__class__'].__mro__ }}",
        "{{ (messages | attr('__class__')).__mro__ }}",
        "{{ [messages] | map(attribute='__class__.__mro__') | list }}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
        "{{ '{m.__class__.__mro__}'.format_map({'m': messages}) }}",
        "{{ ('%s' | format(messages.__class__.__mro__)) }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ strftime_now.__code__.co_consts }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ self.__init__ }}{{ self._TemplateReference__context.environment }}",
        "{% set ns = namespace(__html__=1) %}",
        "{% set ns = namespace() %}{% set ns.__html__ = 1 %}",
        # What Python itself refuses.
        "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
        "{{ messages[9].content }}",
    ],
)
def test_a_template_that_fails_or_reaches_out_is_an_error_for_people(template: str, tmp_path: Path):
    with pytest.raises(UsageError, match="chat template refuses") as caught:
        render(bundle_with(tmp_path, template), TALK)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "source", ["{% for m in messages %}", "{{ " + "(" * 5000 + ")" * 5000 + " }}", "{{ 1 | none }}"]
)
def test_a_text_that_is_no_template_is_an_error_for_people(source: str):
    with pytest.raises(UsageError, match="chat template can't be compiled"):
        Template(source)


def test_a_prompt_has_a_longest_length():
    template = Template("{% for m in messages %}{{ m.content }}{% endfor %}")
    assert template.render([{"role": "user", "content": "x" * 100}], most_characters=100) == "x" * 100
    with pytest.raises(UsageError, match="more than 100 characters"):
        template.render([{"role": "user", "content": "x" * 50}] * 3, most_characters=100)


def test_half_of_a_surrogate_pair_is_refused_wherever_it_comes_from():
    with pytest.raises(UsageError, match=r"messages\[0\]\.content.*U\+D800"):
        check_messages([{"role": "user", "content": "a\ud800"}])
    hidden = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"a": "\\ud800"}'}}]}
    with pytest.raises(UsageError, match=r"U\+D800"):
        Template("{{ messages[0].tool_calls[0].function.arguments | tojson }}").render(check_messages([hidden]))
    with pytest.raises(UsageError, match="refuses"):
        Template("{{ raise_exception(messages[0].x) }}").render([{"role": "user", "content": "", "x": "\ud800"}])


def test_a_bundle_without_a_template_says_what_to_use_instead(tmp_path: Path):
    with pytest.raises(InputError, match="no chat template"):
        render(tmp_path, TALK)


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "video"])
def test_content_that_is_no_text_is_refused_by_name(kind: str):
    messages = [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, {"type": kind, kind: {}}]}]
    with pytest.raises(UnsupportedError, match=kind) as caught:
        check_messages(messages)
    assert caught.value.where == "messages[0].content[1]"


def assistant(**fields: Any) -> list[dict[str, Any]]:
    return [{"role": "assistant", "content": ""} | fields]


@pytest.mark.parametrize(
    ("messages", "place"),
    [
        ([], ""),
        ({}, ""),
        ("hello", ""),
        ([1], "[0]"),
        ([{"content": "x"}], "[0].role"),
        ([{"role": 1}], "[0].role"),
        ([{"role": []}], "[0].role"),
        ([*TALK, {"role": "robot", "content": ""}], "[4].role"),
        ([{"role": "user"}], "[0].content"),
        ([{"role": "user", "content": None}], "[0].content"),
        ([{"role": "assistant", "content": None, "tool_calls": []}], "[0].content"),
        ([{"role": "user", "content": 5}], "[0].content"),
        ([{"role": "user", "content": {"text": "x"}}], "[0].content"),
        ([{"role": "user", "content": [{"type": "text"}]}], "[0].content[0].text"),
        ([{"role": "user", "content": "", "name": 1}], "[0].name"),
        ([{"role": "tool", "content": "", "tool_call_id": 1}], "[0].tool_call_id"),
        ([{"role": "user", "content": "", "tool_call_id": "a"}], "[0].tool_call_id"),
        ([{"role": "user", "content": "", "tool_calls": []}], "[0].tool_calls"),
        (assistant(reasoning_content=1), "[0].reasoning_content"),
        (assistant(tool_calls={}), "[0].tool_calls"),
        (assistant(tool_calls=[1]), "[0].tool_calls[0]"),
        (assistant(tool_calls=[{}]), "[0].tool_calls[0].function"),
        (assistant(tool_calls=[{"function": {}}]), "[0].tool_calls[0].function.name"),
        (assistant(tool_calls=[{"function": {"name": "f", "arguments": []}}]), "[0].tool_calls[0].function.arguments"),
        (assistant(tool_calls=[{"id": 1, "function": CALL}]), "[0].tool_calls[0].id"),
        (assistant(tool_calls=[{"function": CALL}], function_call=CALL), "[0].function_call"),
        (assistant(tool_calls=[{"type": "custom", "custom": {}}]), "[0].tool_calls[0].type"),
    ],
)
def test_malformed_messages_are_named_with_their_place(messages: Any, place: str):
    with pytest.raises((UsageError, UnsupportedError)) as caught:
        check_messages(messages, "messages")
    assert caught.value.where == f"messages{place}"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
FIELDS = ("content", "name", "tool_calls", "tool_call_id", "function_call", "reasoning_content", "reasoning", "other")
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
functions = st.fixed_dictionaries({"name": json_values, "arguments": json_values})
calls = st.lists(st.fixed_dictionaries({"function": functions}), max_size=2)
wild = st.fixed_dictionaries(
    {"role": st.sampled_from(ROLES)}, optional=dict.fromkeys(FIELDS, json_values) | {"tool_calls": calls | json_values}
)


@given(st.lists(wild | json_values, max_size=3), st.sampled_from(QWEN))
def test_whatever_the_messages_are_the_answer_is_a_prompt_or_an_error_for_people(messages: Any, name: str):
    try:
        prompt = Template(TEMPLATES[name]).render(check_messages(messages))
    except QpackError:
        return
    assert prompt.endswith(("<|im_start|>assistant\n", "<think>\n"))


def test_messages_come_from_a_json_file(tmp_path: Path):
    path = tmp_path / "messages.json"
    path.write_text(json.dumps(TALK), encoding="utf-8")
    assert load_messages(path) == TALK
    path.write_text(json.dumps([*TALK, {"role": "user", "content": 1}]), encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        load_messages(path)
    assert caught.value.where == f"{path}: messages[4].content"
