"""A child renders templates: whatever one does there, the server goes on, and the next request gets its prompt."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from bundles import ASSETS
from children import children_of
from qpack_runtime.chat_template import TEMPLATE
from qpack_runtime.serve.text import render_child
from qpack_runtime.serve.text.template_process import CHILD, TemplateProcess
from qpack_schemas.errors import InputError, UsageError

PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}{{ extra }}<|im_start|>assistant"
)
# What the last message says decides what the template does.
BOMBS = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "power": "{{ 9 ** (9 ** 9 * messages | length) }}",
    "long": "{% for a in range(99999) %}{{ 'x' * 9999 }}{% endfor %}",
    "memory": "{{ ('x' * (messages | length) * 10 ** 9) | length }}",
    "doubling": "{% set ns = namespace(t='xx') %}{% for a in range(99) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}",
    "padding": "{{ '%9999999999d' % messages | length }}{{ '{:9999999999}'.format(messages | length) }}",
    "lists": "{{ (messages * 10 ** 9) | length }}",
    "recursion": "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
}
ARMED = "{% set bomb = messages[-1].content %}" + "".join(
    f"{{% if bomb == '{name}' %}}{body}{{% endif %}}" for name, body in BOMBS.items()
)
HELLO = [{"role": "user", "content": "Hello."}]
HELLO_PROMPT = "<|im_start|>user\nHello.<|im_end|>\n<|im_start|>assistant"


def says(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def bundle_with(folder: Path, template: str) -> Path:
    (folder / TEMPLATE).parent.mkdir(parents=True)
    (folder / TEMPLATE).write_text(template, encoding="utf-8", newline="")
    return folder


def serving(bundle: Path, steps: Callable[[TemplateProcess], Awaitable[None]], **options: Any) -> None:
    """Runs `steps` on a started process; closes it, and sees that no descriptor and no child is left."""

    async def run() -> None:
        before = set(os.listdir("/proc/self/fd"))
        process = TemplateProcess(bundle, **options)
        try:
            await process.start()
            await steps(process)
        finally:
            await process.close()
        assert not set(os.listdir("/proc/self/fd")) - before  # an earlier test's may be collected meanwhile

    asyncio.run(run())
    assert children() == []


BEFORE: set[int] = set()  # children of this process that are other tests' servers


@pytest.fixture(autouse=True)
def children_of_others() -> None:
    BEFORE.clear()
    BEFORE.update(children())


def children() -> list[int]:
    """The ids of the children that a test has made, the zombies among them."""
    return [pid for pid in children_of(os.getpid()) if pid not in BEFORE]


async def refused(process: TemplateProcess, messages: list[dict[str, Any]], **given: Any) -> UsageError:
    with pytest.raises(UsageError) as caught:
        await process.render(messages, **given)
    return caught.value


def test_the_child_renders_as_transformers_does(tmp_path: Path):
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(ASSETS / "tiny-qwen3" / "tokenizer.json"))
    talk = [*HELLO, {"role": "assistant", "content": 'Ça va? 你好 \U0001f600 \0 "<b>"'}]
    tools = [{"type": "function", "function": {"name": "f", "description": "é"}}]

    async def steps(process: TemplateProcess) -> None:
        given = {"tools": tools, "extra": "!"}
        wanted = tokenizer.apply_chat_template(talk, chat_template=PLAIN, tokenize=False, **given)
        assert await process.render(talk, tools, {"extra": "!"}) == wanted

    serving(bundle_with(tmp_path, PLAIN), steps)


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_template_that_explodes_fails_its_own_request_only(bomb: str, tmp_path: Path):
    async def steps(process: TemplateProcess) -> None:
        error = await refused(process, says(bomb))
        assert "chat template" in error.message or "prompt has more than" in error.message
        assert await process.render(HELLO) == HELLO_PROMPT

    serving(bundle_with(tmp_path, ARMED + PLAIN), steps)


def test_a_template_that_explodes_when_it_is_compiled_stops_the_start(tmp_path: Path):
    """Jinja folds constants, so this one is computed before there is a message."""
    with pytest.raises(InputError, match="too much time or memory"):
        serving(bundle_with(tmp_path, "{{ 9 ** (9 ** 9) }}"), nothing, seconds=0.1)


async def nothing(process: TemplateProcess) -> None:
    pass


def test_many_and_deep_messages_are_rendered_or_refused(tmp_path: Path):
    async def steps(process: TemplateProcess) -> None:
        assert (await process.render(HELLO * 100_000)).count("Hello.") == 100_000
        deep: Any = "x"
        for _ in range(900):
            deep = [deep]
        assert await process.render(HELLO, variables={"deep": deep}) == HELLO_PROMPT
        for _ in range(100_000):
            deep = [deep]
        assert "nested too deeply" in (await refused(process, HELLO, variables={"deep": deep})).message
        assert "U+D800" in (await refused(process, says("\ud800"))).message
        assert "4000000 characters" in (await refused(process, says("x" * 4_000_000))).message
        assert "messages" in (await refused(process, HELLO, variables={"messages": []})).message

    serving(bundle_with(tmp_path, PLAIN), steps, seconds=30)


def test_characters_of_four_bytes_up_to_the_limit_fit_into_the_childs_memory(tmp_path: Path):
    async def steps(process: TemplateProcess) -> None:
        text = "\U0001f600" * 3_999_900
        assert text in await process.render(says(text))

    serving(bundle_with(tmp_path, PLAIN), steps, seconds=30)


@pytest.mark.parametrize("name", [signal.SIGKILL, signal.SIGSEGV])
def test_a_child_killed_between_two_requests_has_a_successor(name: signal.Signals, tmp_path: Path):
    async def steps(process: TemplateProcess) -> None:
        for _ in range(3):
            (child,) = children()
            os.kill(child, name)
            assert await process.render(HELLO) == HELLO_PROMPT
            assert children() != [child]

    serving(bundle_with(tmp_path, PLAIN), steps)


def test_a_client_that_leaves_in_the_middle_puts_no_other_request_out_of_step(tmp_path: Path):
    async def steps(process: TemplateProcess) -> None:
        for turns in range(12):  # each leaves at another point: waiting for its turn, writing, reading
            rendering = asyncio.create_task(process.render(says("x" * 200_000)))
            waiting = asyncio.create_task(process.render(says("waits")))
            following = asyncio.create_task(process.render(HELLO))
            for _ in range(turns):
                await asyncio.sleep(0)
            rendering.cancel()
            waiting.cancel()
            assert await following == HELLO_PROMPT
            await asyncio.gather(rendering, waiting, return_exceptions=True)

    serving(bundle_with(tmp_path, PLAIN), steps, seconds=30)


def test_requests_that_come_together_get_each_its_own_prompt(tmp_path: Path):
    async def steps(process: TemplateProcess) -> None:
        prompts = await asyncio.gather(*(process.render(says(f"<{i}>")) for i in range(50)))
        assert all(f"<{i}>" in prompt for i, prompt in enumerate(prompts))

    serving(bundle_with(tmp_path, PLAIN), steps)


def test_the_template_is_read_once(tmp_path: Path):
    bundle = bundle_with(tmp_path, PLAIN)

    async def steps(process: TemplateProcess) -> None:
        (bundle / TEMPLATE).write_text("another", encoding="utf-8")
        assert await process.render(HELLO) == HELLO_PROMPT

    serving(bundle, steps)


def test_a_request_that_is_rendered_while_the_server_closes_fails(tmp_path: Path):
    async def steps(process: TemplateProcess) -> None:
        rendering = asyncio.create_task(refused(process, says("loops")))
        for _ in range(5):
            await asyncio.sleep(0)
        await process.close()
        assert "stopped" in (await rendering).message

    serving(bundle_with(tmp_path, ARMED + PLAIN), steps, seconds=30)


def test_a_bundle_without_a_template_is_told_to_use_completions(tmp_path: Path):
    async def steps(process: TemplateProcess) -> None:
        assert children() == []
        assert "/v1/completions" in (await refused(process, HELLO)).remedy

    serving(tmp_path, steps)


def test_a_template_that_does_not_compile_stops_the_start(tmp_path: Path):
    with pytest.raises(UsageError, match="can't be compiled") as caught:
        serving(bundle_with(tmp_path, "{% for %}"), nothing)
    assert caught.value.where == TEMPLATE


def test_a_child_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    bundle = bundle_with(tmp_path / "bundle", PLAIN)
    (tmp_path / "jinja2.py").write_text("raise ImportError('no such library')", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(InputError, match="no such library"):
        serving(bundle, nothing)


def limits_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/limits").read_text(encoding="ascii").splitlines()[1:]
    return {line[:26].strip(): line[26:].split()[0] for line in lines}


def test_the_child_has_limits_and_nothing_of_the_servers_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("QPACK_API_KEY", "secret")

    async def steps(process: TemplateProcess) -> None:
        await process.render(HELLO)
        (child,) = children()
        limits = limits_of(child)
        assert (limits["Max file size"], limits["Max core file size"]) == ("0", "0")
        assert int(limits["Max open files"]) <= 16
        assert int(limits["Max address space"]) < 1 << 30
        assert int(limits["Max cpu time"]) <= 10
        assert b"secret" not in Path(f"/proc/{child}/environ").read_bytes()
        assert len(os.listdir(f"/proc/{child}/fd")) <= 4
        for ignored in (signal.SIGINT, signal.SIGTERM):
            os.kill(child, ignored)
        assert await process.render(HELLO) == HELLO_PROMPT
        assert children() == [child]

    serving(bundle_with(tmp_path, PLAIN), steps)


def test_the_template_stays_that_of_the_boot_when_a_newer_bundle_takes_its_place(tmp_path: Path):
    async def steps(process: TemplateProcess) -> None:
        (tmp_path / "bundle" / TEMPLATE).write_text("another", encoding="utf-8")
        (child,) = children()
        os.kill(child, signal.SIGKILL)
        assert await process.render(HELLO) == HELLO_PROMPT

    serving(bundle_with(tmp_path / "bundle", PLAIN), steps)


def framed(data: bytes) -> bytes:
    return render_child.LENGTH.pack(len(data)) + data


def test_the_child_ends_with_its_parent():
    """Its stdin ends then; the last request may have been cut off."""
    command = [sys.executable, "-P", "-m", CHILD, "2.0", "1000"]
    for cut_off in (b"", b"\0\0", b"\0\0\1\0{"):
        ran = subprocess.run(command, input=framed(PLAIN.encode()) + cut_off, capture_output=True, check=True)
        assert ran.stdout == render_child.LENGTH.pack(15) + b'{"ready": true}'


def test_a_child_whose_parent_is_gone_while_it_loops_is_ended_by_the_kernel():
    request = b'{"messages": [{"role": "user", "content": "loops"}]}'
    command = [sys.executable, "-P", "-m", CHILD, "0.1", "1000"]
    ran = subprocess.run(command, input=framed((ARMED + PLAIN).encode()) + framed(request), capture_output=True)
    assert ran.returncode == -signal.SIGXCPU


def test_the_child_loads_no_library_but_jinja():
    """Numpy, a tokenizer and asyncio would each take more memory than all of the child."""
    code = f"import sys, {CHILD}; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    loaded = {name for name in ran.stdout.split() if not name.startswith("_")}
    assert loaded - sys.stdlib_module_names <= {"jinja2", "markupsafe", "qpack_runtime", "qpack_schemas"}
    assert "asyncio" not in loaded
