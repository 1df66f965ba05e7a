/** How the page makes its elements. Text only ever becomes a text node. */

/** element("p", {className: "small"}, "text", child): properties are set on the element, children appended. */
export function element(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

/** One of the symbols in index.html. */
export function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", `#${name}`);
  svg.setAttribute("aria-hidden", "true");
  svg.append(use);
  return svg;
}
