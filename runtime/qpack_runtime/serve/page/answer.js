/** One answer being written: what comes from the server goes into a message, with how fast it came. */

import { chat, ServerError } from "./server.js";

/** An assistant's message. finish: "stop", "length", "stopped" by the reader, or null while it is being written. */
export function blankAnswer() {
  return { role: "assistant", content: "", finish: null, error: null, facts: {} };
}

/**
 * Fills `message` until the answer ends, calling `changed` after each piece. An error ends in message.error, as a text
 * of words.js. facts: first (seconds to the first token), rate (tokens/s after it), prompt, cached, answer (tokens).
 */
export async function writeAnswer(message, request, signal, changed) {
  const asked = performance.now();
  const { facts } = message;
  let first = 0;
  let last = 0;
  let pieces = 0; // a piece is a token, or several that make one character: near enough until the usage comes
  try {
    for await (const chunk of chat(request, signal)) {
      const choice = chunk.choices[0];
      if (choice?.delta?.content) {
        last = performance.now();
        first ||= last;
        pieces += 1;
        message.content += choice.delta.content;
        facts.first = (first - asked) / 1000;
        facts.rate = rate(pieces, last - first);
      }
      if (choice?.finish_reason) message.finish = choice.finish_reason;
      if (chunk.usage) {
        facts.prompt = chunk.usage.prompt_tokens;
        facts.cached = chunk.usage.prompt_tokens_details?.cached_tokens ?? 0;
        facts.answer = chunk.usage.completion_tokens;
        facts.rate = rate(facts.answer, last - first);
      }
      changed();
    }
  } catch (error) {
    if (signal.aborted) message.finish = "stopped";
    else if (error instanceof ServerError) message.error = { word: error.word, values: error.values };
    else throw error;
  } finally {
    message.finish ??= "stop";
    changed();
  }
}

/** Tokens per second, from the first token to the last. */
function rate(tokens, milliseconds) {
  return tokens > 1 && milliseconds > 0 ? ((tokens - 1) * 1000) / milliseconds : null;
}
