"""What a model writes is only ever text: Markdown as CommonMark reads it, markup as it was written."""

import json
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from openai._streaming import SSEDecoder
from playwright.sync_api import Page, expect

from runtime.serve.page.asking import answered, answers
from runtime.serve.page.fake_server import FakeServer

ATTACKS = """<script>window.hit = 1</script>
<img src=x onerror="window.hit = 2">

- <svg onload="window.hit = 3">
- **<b onclick=1>bold</b>** `<i>code</i>`

# <style>body { display: none }</style>

```"><script>window.hit = 4</script>
</code></pre><script>window.hit = 5</script>
```

[link](javascript:alert(1)) &lt;b&gt; <think><script>window.hit = 6</script></think>"""
ALLOWED = {"P", "H3", "H4", "PRE", "CODE", "STRONG", "EM", "UL", "OL", "LI"}
WORD = st.text("abcxyzäß你好<&\"'", min_size=1, max_size=6)
INLINE = st.one_of(WORD, WORD.map("**{}**".format), WORD.map("`{}`".format))
LINE = st.lists(INLINE, min_size=1, max_size=5).map(" ".join)
LISTS = st.tuples(st.sampled_from(["- {}", "* {}", "1. {}"]), st.lists(LINE, min_size=1, max_size=4))
BLOCK = st.one_of(
    st.lists(LINE, min_size=1, max_size=3).map("\n".join),
    st.tuples(st.integers(1, 6), LINE).map(lambda pair: "#" * pair[0] + " " + pair[1]),
    LISTS.map(lambda pair: "\n".join(pair[0].format(item) for item in pair[1])),
    st.tuples(st.integers(3, 5), st.lists(LINE, max_size=3)).map(
        lambda pair: "\n".join(["`" * pair[0] + "python", *pair[1], "`" * pair[0]])
    ),
)
RENDER = """async (text) => {
    const { renderMarkdown } = await import("/page/markdown.js");
    const node = document.createElement("div");
    renderMarkdown(node, text);
    return node.innerHTML;
}"""
GROW = """async (text) => {
    const { renderMarkdown } = await import("/page/markdown.js");
    const [grown, whole] = [document.createElement("div"), document.createElement("div")];
    const characters = [...text];
    for (let end = 0; end <= characters.length; end++) renderMarkdown(grown, characters.slice(0, end).join(""));
    renderMarkdown(whole, text);
    return [grown.innerHTML, whole.innerHTML];
}"""
EVENTS = """async (pieces) => {
    const { events } = await import("/page/sse.js");
    const body = new ReadableStream({
        start(controller) {
            for (const piece of pieces) controller.enqueue(new Uint8Array(piece));
            controller.close();
        },
    });
    const found = [];
    for await (const data of events(body)) found.push(data);
    return found;
}"""


class Outline(HTMLParser):
    """Elements and their text in order, the text after a quote; `ranks` renames headings."""

    def __init__(self, html: str, ranks: dict[str, str] | None = None):
        super().__init__()
        self.found: list[str] = []
        self.ranks = ranks or {}
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.found.append(self.ranks.get(tag, tag))

    def handle_data(self, data: str) -> None:
        if data.strip():
            if self.found and self.found[-1].startswith("'"):
                data = self.found.pop()[1:] + data
            self.found.append("'" + data.strip())


RANKS = {"h1": "h3", "h2": "h3"} | dict.fromkeys(["h3", "h4", "h5", "h6"], "h4")  # the page's own are h1 and h2


def test_markup_in_an_answer_stays_text(page: Page, server: FakeServer):
    answered(page, server, ATTACKS, "<img src=x onerror='window.hit = 7'>")
    expect(answers(page)).to_contain_text('<img src=x onerror="window.hit = 2">')
    expect(page.get_by_role("article", name="You")).to_have_text("<img src=x onerror='window.hit = 7'>")
    assert page.evaluate("window.hit") is None
    made = answers(page).evaluate(
        "(node) => [...node.querySelectorAll('.prose *')].map((one) => [one.tagName, ...one.getAttributeNames()])"
    )
    assert {tag for tag, *_ in made} <= ALLOWED
    assert {name for _, *names in made for name in names} <= {"tabindex", "role", "aria-label", "start"}


@given(text=st.text("<>&\"'`*#-1. \n\tabé你=/!\\", max_size=120))
def test_any_text_makes_only_known_elements_and_loses_no_letter(blank: Page, text: str):
    made = blank.evaluate(RENDER, text)
    outline = Outline(made)
    assert {one for one in outline.found if not one.startswith("'")} <= {tag.lower() for tag in ALLOWED}
    shown = "".join(one[1:] for one in outline.found if one.startswith("'"))
    letters = [letter for letter in text if letter in "é你"]
    if "`" not in text:  # a fence keeps its language out of sight
        assert [letter for letter in shown if letter in "é你"] == letters


@given(blocks=st.lists(BLOCK, min_size=1, max_size=5))
def test_well_formed_markdown_is_read_as_commonmark_reads_it(blank: Page, blocks: list[str]):
    text = "\n\n---\n\n".join(blocks)  # a rule, so that two lists don't become one; the page shows it as text
    wanted = MarkdownIt("commonmark").render(text).replace("<hr />", "<p>---</p>")
    assert Outline(blank.evaluate(RENDER, text)).found == Outline(wanted, RANKS).found


@pytest.mark.parametrize(
    "text",
    [
        "1. one\n   - a\n   - b\n     1. deep\n2. two",
        "- one\n\n  more of one\n- two\n\nafter",
        "3. three\n4. four",
        "text\n- item",
        "~~~\n```\n~~~",
        "*it* and **bold**",
        "",
    ],
)
def test_lists_within_lists_are_read_as_commonmark_reads_them(blank: Page, text: str):
    wanted = Outline(MarkdownIt("commonmark").render(text)).found
    tags = [one for one in Outline(blank.evaluate(RENDER, text)).found if not one.startswith("'")]
    loose = text.count("\n\n") > 0
    assert [tag for tag in tags if not (loose and tag == "p")] == [
        tag for tag in wanted if not tag.startswith("'") and not (loose and tag == "p")
    ]


@given(blocks=st.lists(BLOCK, min_size=1, max_size=4))
def test_a_text_that_grows_ends_as_if_it_had_come_at_once(blank: Page, blocks: list[str]):
    grown, whole = blank.evaluate(GROW, "\n".join(blocks))
    assert grown == whole


def test_a_long_text_is_read_in_linear_time(blank: Page):
    """Each of these would take minutes if a search began anew at every character."""
    for unit in ("*", "**", "`", "**a", "# ", "- ", "  ", "*a ", "1. ", "```", "<think>"):
        blank.evaluate(RENDER, unit * (200_000 // len(unit)))


def test_blocks_that_have_not_changed_keep_their_elements(blank: Page):
    kept = blank.evaluate("""async () => {
        const { renderMarkdown } = await import("/page/markdown.js");
        const node = document.createElement("div");
        renderMarkdown(node, "one\\n\\ntwo");
        const first = node.children[0];
        renderMarkdown(node, "one\\n\\ntwo and more\\n\\n- three");
        return [node.children[0] === first, node.children.length];
    }""")
    assert kept == [True, 3]


@st.composite
def streams(draw: st.DrawFn) -> list[list[int]]:
    """Events in pieces: any line ending, comments, fields that aren't `data`, cut anywhere."""
    end = draw(st.sampled_from(["\n", "\r\n"]))
    line = st.one_of(
        st.text('ab {}":,é你🙂', max_size=12).map("data: {}".format),
        st.sampled_from(["data:x", "data", ": comment", "event: message", "id: 3", "data:  two"]),
    )
    events = draw(st.lists(st.lists(line, min_size=1, max_size=3), max_size=4))
    data = "".join("".join(one + end for one in event) + end for event in events).encode()
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=6)))
    return [list(data[start:stop]) for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@given(pieces=streams())
def test_events_are_read_as_the_openai_client_reads_them(blank: Page, pieces: list[list[int]]):
    wanted = [event.data for event in SSEDecoder().iter_bytes(iter([b"".join(map(bytes, pieces))])) if event.data]
    assert [data for data in blank.evaluate(EVENTS, pieces) if data] == wanted


def test_a_json_chunk_survives_every_cut(blank: Page):
    data = f"data: {json.dumps({'text': '你🙂'}, ensure_ascii=False)}\r\n\r\n".encode()
    for cut in range(len(data)):
        assert blank.evaluate(EVENTS, [list(data[:cut]), list(data[cut:])]) == ['{"text": "你🙂"}']
