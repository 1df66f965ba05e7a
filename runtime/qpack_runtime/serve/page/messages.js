/** The shown messages, drawn at most once a frame. The page follows their end for a reader who is there. */

import { element, icon } from "./element.js";
import { renderMarkdown } from "./markdown.js";
import { splitThought } from "./thinking.js";
import { number, word } from "./words.js";

const NEAR = 48; // pixels from the end that still count as being there

export class Messages {
  #list;
  #scroller;
  #again;
  #drawn = new Map(); // message -> () => draw it anew
  #changed = new Set();

  /** again: called when the reader asks for another answer. */
  constructor(list, scroller, again) {
    this.#list = list;
    this.#scroller = scroller;
    this.#again = again;
  }

  /** Shows these messages and none else, from their end. */
  show(messages) {
    this.#drawn.clear();
    this.#changed.clear();
    this.#list.replaceChildren(...messages.map((message) => this.#make(message)));
    this.#scroller.scrollTop = this.#scroller.scrollHeight;
  }

  /** `message` has changed; it is drawn with the next frame, if it is shown at all. */
  update(message) {
    if (!this.#drawn.has(message)) return;
    if (!this.#changed.size) requestAnimationFrame(() => this.#draw());
    this.#changed.add(message);
  }

  #draw() {
    const view = this.#scroller;
    const following = view.scrollHeight - view.scrollTop - view.clientHeight < NEAR;
    for (const message of this.#changed) this.#drawn.get(message)();
    this.#changed.clear();
    if (following) view.scrollTop = view.scrollHeight;
  }

  #make(message) {
    const { node, draw } = message.role === "user" ? question(message) : answer(message, this.#again);
    this.#drawn.set(message, draw);
    draw();
    return element("li", {}, node);
  }
}

function question(message) {
  const text = element("div", { className: "prose" });
  const node = element("article", { className: "question", ariaLabel: word("you") }, text);
  return { node, draw: () => (text.textContent = message.content) };
}

function answer(message, again) {
  const summary = element("summary");
  const thoughts = element("div", { className: "prose" });
  const thinking = element("details", {}, summary, thoughts);
  const waiting = element("p", { className: "waiting small" }, word("waiting"));
  const text = element("div", { className: "prose" });
  const error = element("p", { className: "fault" });
  const facts = element("p", { className: "facts small" });
  const repeat = element("button", { type: "button", className: "quiet text", onclick: again });
  repeat.append(icon("again"), word("regenerate"));
  const foot = element("footer", {}, facts, repeat);
  const node = element("article", { className: "answer", ariaLabel: word("answer") });
  node.append(thinking, waiting, text, error, foot);
  const draw = () => {
    const parts = splitThought(message.content);
    const writing = message.finish === null;
    node.classList.toggle("writing", writing);
    thinking.hidden = !parts.thought && !parts.thinking;
    summary.textContent = word(parts.thinking && writing ? "thinking_now" : "thought");
    renderMarkdown(thoughts, parts.thought);
    waiting.hidden = !writing || message.content !== "";
    renderMarkdown(text, parts.text);
    error.hidden = !message.error;
    error.textContent = message.error ? word(message.error.word, message.error.values) : "";
    facts.textContent = describe(message).join(" · ");
    repeat.hidden = writing;
  };
  return { node, draw };
}

/** What is known of an answer's speed and size, as texts. */
function describe({ facts, finish }) {
  const found = [];
  if (facts.first !== undefined) found.push(word("fact_first", { seconds: number(facts.first, 2) }));
  if (facts.rate) found.push(word("fact_rate", { rate: number(facts.rate, 1) }));
  if (facts.prompt !== undefined) {
    const tokens = { tokens: number(facts.prompt), cached: number(facts.cached) };
    found.push(word(facts.cached ? "fact_prompt_cached" : "fact_prompt", tokens));
    found.push(word("fact_answer", { tokens: number(facts.answer) }));
  }
  if (finish === "length") found.push(word("fact_length"));
  if (finish === "stopped") found.push(word("fact_stopped"));
  return found;
}
