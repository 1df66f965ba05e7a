/** What the page asks of the server, and how each way to fail is named. */

import { events } from "./sse.js";
import { session } from "./storage.js";

const KEY = "qpack.key";

/** A request that failed. word: its text in words.js; values: what that text names. */
export class ServerError extends Error {
  constructor(word, values = {}) {
    super(word);
    this.word = word;
    this.values = values;
  }
}

export function apiKey() {
  return session.get(KEY) ?? "";
}

/** Kept until the tab closes; "" forgets it. */
export function setApiKey(key) {
  if (key) session.set(KEY, key);
  else session.delete(KEY);
}

async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (apiKey()) headers.authorization = `Bearer ${apiKey()}`;
  try {
    return await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("error_unreachable");
  }
}

async function failure(response) {
  const text = await response.text().catch(() => "");
  let message = `HTTP ${response.status}`;
  try {
    message = JSON.parse(text).error.message;
  } catch {
    // A proxy in front of the server answers in its own way.
  }
  if (response.status === 401) return new ServerError("error_key");
  if (response.status === 429) {
    const wait = Number(response.headers.get("retry-after-ms")) || 1000;
    return new ServerError("error_full", { seconds: Math.ceil(wait / 1000) });
  }
  if (response.status === 503) return new ServerError("error_booting", { message });
  return new ServerError(response.status < 500 ? "error_refused" : "error_failed", { message });
}

/** GET /stats. Throws ServerError. */
export async function stats() {
  const response = await ask("stats");
  if (!response.ok) throw await failure(response);
  return response.json();
}

/** GET /readyz: {ready, phase}; the phase is the server's own word for what it does. */
export async function readiness() {
  const response = await ask("readyz");
  if (response.ok) return { ready: true };
  const { phase } = await response.json().catch(() => ({}));
  return { ready: false, phase: phase ?? `HTTP ${response.status}` };
}

/** POST /v1/chat/completions: yields the chunks of the answer. Throws ServerError, or AbortError after `signal`. */
export async function* chat(request, signal) {
  const body = JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true } });
  const headers = { "content-type": "application/json" };
  const response = await ask("v1/chat/completions", { method: "POST", body, headers, signal });
  if (!response.ok) throw await failure(response);
  try {
    for await (const data of events(response.body)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ServerError("error_failed", { message: chunk.error.message });
      if (!chunk.choices) break;
      yield chunk;
    }
  } catch (error) {
    if (error instanceof ServerError || error.name === "AbortError") throw error;
  }
  throw new ServerError("error_broken"); // cut off, or not what an answer is made of
}
