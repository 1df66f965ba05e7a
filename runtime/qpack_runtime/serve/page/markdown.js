/**
 * A small safe Markdown: paragraphs, headings, fenced code, nested lists, inline code, bold and italic. It builds
 * elements and text nodes, so that whatever a model writes can't become markup; what it doesn't know stays as written.
 */

import { element } from "./element.js";

const FENCE = /^\s*(`{3,}|~{3,})\s*([^`\s]*)/;
const HEADING = /^(#{1,6})\s+(.*)$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
// Each alternative ends at the first character that can't belong to it, which keeps the search linear.
const INLINE = /`([^`\n]+)`|\*\*([^*\n]+)\*\*|\*([^*\s][^*\n]*)\*/g;

/** Text -> blocks {kind, lines}, which a growing text only changes at its end. */
function blocks(text) {
  const lines = text.split("\n");
  const found = [];
  for (let at = 0; at < lines.length; ) {
    const from = at++;
    const fence = FENCE.exec(lines[from]);
    let kind = "paragraph";
    if (!lines[from].trim()) continue;
    if (fence) {
      kind = "code";
      while (at < lines.length && !lines[at].trim().startsWith(fence[1])) at++;
      at++; // the closing fence, or one past the end while it is missing
    } else if (HEADING.test(lines[from])) {
      kind = "heading";
    } else if (ITEM.test(lines[from])) {
      kind = "list";
      while (at < lines.length && (belongs(lines[at]) || (!lines[at].trim() && belongs(lines[at + 1])))) at++;
    } else {
      const other = (line) => !line.trim() || FENCE.test(line) || HEADING.test(line) || ITEM.test(line);
      while (at < lines.length && !other(lines[at])) at++;
    }
    found.push({ kind, lines: lines.slice(from, at) });
  }
  return found;
}

/** Does this line go on with a list: another item, or an indented line of the last one? */
function belongs(line = "") {
  return !FENCE.test(line) && (ITEM.test(line) || /^\s+\S/.test(line));
}

function inline(text) {
  const nodes = document.createDocumentFragment();
  let plain = 0;
  for (const match of text.matchAll(INLINE)) {
    nodes.append(text.slice(plain, match.index));
    plain = match.index + match[0].length;
    if (match[1]) nodes.append(element("code", {}, match[1]));
    else if (match[2]) nodes.append(element("strong", {}, inline(match[2])));
    else nodes.append(element("em", {}, inline(match[3])));
  }
  nodes.append(text.slice(plain));
  return nodes;
}

function list(lines) {
  const open = []; // the lists that enclose the current line, outermost first: {indent, node}
  let root = null;
  let item = null;
  for (const line of lines) {
    const match = ITEM.exec(line);
    if (!match) {
      if (line.trim()) item.append("\n", inline(line.trim()));
      continue;
    }
    const [, space, mark, text] = match;
    while (open.length > 1 && space.length < open.at(-1).indent) open.pop();
    if (!open.length || space.length > open.at(-1).indent + 1) {
      const node = element(/\d/.test(mark) ? "ol" : "ul");
      if (/\d/.test(mark)) node.start = parseInt(mark, 10);
      (item ?? { append: (first) => (root = first) }).append(node);
      open.push({ indent: space.length, node });
    }
    item = element("li", {}, inline(text));
    open.at(-1).node.append(item);
  }
  return root;
}

function build({ kind, lines }) {
  if (kind === "list") return list(lines);
  if (kind === "paragraph") return element("p", {}, inline(lines.join("\n")));
  if (kind === "heading") {
    const [, marks, text] = HEADING.exec(lines[0]);
    return element(marks.length < 3 ? "h3" : "h4", {}, inline(text));
  }
  const [, mark, language] = FENCE.exec(lines[0]);
  const body = lines.slice(1, lines.at(-1).trim().startsWith(mark) && lines.length > 1 ? -1 : undefined);
  const code = element("code", {}, body.join("\n"));
  return element("pre", { tabIndex: 0, ariaLabel: language || "code", role: "group" }, code);
}

/** Shows `text` in `node`. Blocks that haven't changed keep their elements, and with them the reader's selection. */
export function renderMarkdown(node, text) {
  const wanted = blocks(text);
  const shown = (node.sources ??= []);
  wanted.forEach((block, at) => {
    const source = block.kind + block.lines.join("\n");
    if (shown[at] === source) return;
    if (node.children[at]) node.children[at].replaceWith(build(block));
    else node.append(build(block));
    shown[at] = source;
  });
  while (node.children.length > wanted.length) node.lastElementChild.remove();
  shown.length = wanted.length;
}
