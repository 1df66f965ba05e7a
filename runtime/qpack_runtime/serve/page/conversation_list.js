/** The list of kept conversations: a link to each, and a button that deletes it. */

import { element, icon } from "./element.js";
import { word } from "./words.js";

/** current: the id of the shown one; remove(conversation) is called to delete one. */
export function renderList(node, conversations, current, remove) {
  node.replaceChildren(
    ...conversations.map((conversation) => {
      const { title } = conversation;
      const link = element("a", { href: `#${conversation.id}`, title }, title);
      if (conversation.id === current) link.ariaCurrent = "page";
      const label = word("delete", { title });
      const button = element("button", { type: "button", className: "quiet", ariaLabel: label, title: label });
      button.append(icon("cross"));
      button.onclick = () => remove(conversation);
      return element("li", {}, link, button);
    }),
  );
}
