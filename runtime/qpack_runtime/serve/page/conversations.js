/** The conversations in this browser, each under its own key, so that two tabs don't overwrite each other. */

import { local } from "./storage.js";

const PREFIX = "qpack.conversation.";
const TITLE_LENGTH = 60; // characters

/** A conversation that is kept once it is saved. Its id is also the `session` by which the server finds its slot. */
export function freshConversation() {
  const bytes = crypto.getRandomValues(new Uint8Array(16)); // crypto.randomUUID is missing on plain http
  const id = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return { id, title: "", created: new Date().toISOString(), updated: 0, messages: [] };
}

/** Returns whether it will be there after a reload. */
export function save(conversation) {
  const first = conversation.messages.find((message) => message.role === "user");
  conversation.title ||= [...(first?.content ?? "").replace(/\s+/g, " ")].slice(0, TITLE_LENGTH).join("");
  conversation.updated = Date.now();
  return local.set(PREFIX + conversation.id, JSON.stringify(conversation));
}

/** The conversation `id`, or null if there is none that this page can read. */
export function load(id) {
  try {
    const conversation = JSON.parse(local.get(PREFIX + id));
    if (!conversation.messages.every(({ role, content }) => role && typeof content === "string")) return null;
    // A page that was closed in the middle of an answer leaves it without an end.
    for (const message of conversation.messages) if (message.role === "assistant") message.finish ??= "stopped";
    return conversation;
  } catch {
    return null;
  }
}

export function remove(id) {
  local.delete(PREFIX + id);
}

/** All of them, the last used first. */
export function list() {
  const keys = local.keys().filter((key) => key.startsWith(PREFIX));
  const found = keys.map((key) => load(key.slice(PREFIX.length))).filter(Boolean);
  return found.sort((a, b) => b.updated - a.updated);
}

/** Hands the conversation to the browser as a JSON file, in the shape of a chat request's messages. */
export function exportConversation({ title, created, messages }) {
  const plain = messages.map(({ role, content }) => ({ role, content }));
  const text = `${JSON.stringify({ title, created, messages: plain }, null, 2)}\n`;
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = `qpack-${created.slice(0, 10)}.json`;
  link.click();
  URL.revokeObjectURL(link.href);
}
