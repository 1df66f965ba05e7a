/** Takes an answer apart into what the model thought and what it says. */

const OPEN = "<think>";
const CLOSE = "</think>";

/** {thought, text, thinking}; thinking: the thought isn't closed yet. */
export function splitThought(content) {
  const opened = content.trimStart().startsWith(OPEN);
  const close = content.indexOf(CLOSE);
  if (close < 0) {
    if (!opened) return { thought: "", text: content, thinking: false };
    return { thought: content.trimStart().slice(OPEN.length).trim(), text: "", thinking: true };
  }
  // A template may open the thought within the prompt, so that the answer holds only its end.
  const thought = content.slice(0, close).trimStart();
  const text = content.slice(close + CLOSE.length).trimStart();
  return { thought: (opened ? thought.slice(OPEN.length) : thought).trim(), text, thinking: false };
}
