/** The chat page: what is shown, what is being written, and how the parts of the page hear of it. */

import { blankAnswer, writeAnswer } from "./answer.js";
import { Composer } from "./composer.js";
import { renderList } from "./conversation_list.js";
import { exportConversation, freshConversation, list, load, remove, save } from "./conversations.js";
import { closeDrawer, openDrawer, startDrawers } from "./drawers.js";
import { element } from "./element.js";
import { Messages } from "./messages.js";
import { apiKey, setApiKey } from "./server.js";
import { Settings } from "./settings.js";
import { renderState } from "./state.js";
import { splitThought } from "./thinking.js";
import { Watch } from "./watch.js";
import { number, switchLanguage, translate, word } from "./words.js";

const $ = (id) => document.getElementById(id);

let conversation = freshConversation();
let readiness = { ready: true }; // {ready, phase}, until the server says otherwise
let stats = null;
let notice = null; // what the line above the message field says: {key, values, undo}
const writing = new Map(); // conversation id -> {conversation, controller} of the answer being written

const messages = new Messages($("messages"), $("main"), () => !busy() && answer());
const settings = new Settings($("settings"), $("numbers"), $("fault"), $("reset"));
const composer = new Composer($("composer"), $("prompt"), $("submit"), { send, stop, busy });
const watch = new Watch(hear);
watch.untilReady();
startDrawers(look);

function busy() {
  return writing.has(conversation.id);
}

function stop() {
  writing.get(conversation.id)?.controller.abort();
}

/** Takes the reader's text into the conversation and asks for the answer; false if it can't be sent now. */
function send(text) {
  if (!readiness.ready || !settingsFit()) return false;
  conversation.messages.push({ role: "user", content: text });
  answer();
  return true;
}

function settingsFit() {
  if (settings.check()) return true;
  openDrawer($("side"));
  settings.focusFault();
  return false;
}

/** Writes the answer to the last question, in place of the one that is there. */
async function answer() {
  if (!readiness.ready || !settingsFit()) return;
  const asked = conversation;
  if (asked.messages.at(-1).role === "assistant") asked.messages.pop();
  const told = asked.messages.filter(({ content }) => content).map(({ role, content }) => ({ role, content }));
  const request = { messages: [...settings.preface(), ...told], session: asked.id, ...settings.fields() };
  const message = blankAnswer();
  const controller = new AbortController();
  asked.messages.push(message);
  writing.set(asked.id, { conversation: asked, controller });
  keep(asked);
  location.hash = asked.id;
  show();
  await writeAnswer(message, request, controller.signal, () => messages.update(message));
  writing.delete(asked.id);
  if (load(asked.id)) keep(asked); // unless it has been deleted meanwhile
  announce(message);
  if (message.error) heal(message.error.word);
  showControls();
}

function keep(kept) {
  if (!save(kept)) notify("not_kept");
  else if (notice?.key === "not_kept") notify(null);
  showList();
}

/** What the page itself can do about an error. */
function heal(error) {
  if (error === "error_unreachable" || error === "error_booting") watch.untilReady();
  if (error !== "error_key") return;
  openDrawer($("side"));
  $("key").focus();
}

/** Says once, for those who don't see the page, how an answer has ended. */
function announce(message) {
  const key = message.finish === "stopped" ? "stopped" : "finished";
  const text = splitThought(message.content).text;
  $("announcer").textContent = message.error ? word(message.error.word, message.error.values) : word(key, { text });
}

/** Says something above the message field. undo: takes back what is said to have been done. */
function notify(key, values, undo) {
  notice = key && { key, values, undo };
  showNotice();
}

function showNotice() {
  $("notice").hidden = !notice;
  $("notice").replaceChildren(notice ? word(notice.key, notice.values) : "");
  if (!notice?.undo) return;
  const button = element("button", { type: "button", className: "quiet text", onclick: notice.undo }, word("undo"));
  $("notice").append(" ", button);
}

function removeConversation(removed) {
  writing.get(removed.id)?.controller.abort();
  remove(removed.id);
  notify("deleted", { title: removed.title }, () => {
    notify(null);
    keep(removed);
    location.hash = removed.id;
  });
  if (removed.id === conversation.id) location.hash = "";
  showList();
  $("new").focus();
}

/** What the watch reports. */
function hear(news) {
  if (news.ready !== undefined) readiness = news;
  if (news.stats) {
    stats = news.stats;
    settings.limit(stats.defaults, stats.context);
  }
  if (news.error?.word === "error_key" && notice?.key !== "error_key") notify("error_key");
  if (news.stats && notice?.key === "error_key") notify(null);
  showServer();
}

/** The panel may have come into sight or gone out of it. */
function look() {
  watch.whileVisible(() => !$("side").hidden && document.visibilityState === "visible");
}

/** Keeps what has come of each answer, before the browser cuts its connection. */
function leave() {
  for (const { conversation, controller } of writing.values()) {
    controller.abort();
    save(conversation);
  }
}

function open() {
  const id = location.hash.slice(1);
  if (id === conversation.id && conversation.messages.length) return;
  conversation = writing.get(id)?.conversation ?? load(id) ?? freshConversation();
  show();
  closeDrawer();
  composer.focus();
}

function show() {
  messages.show(conversation.messages);
  showList();
  showControls();
}

function showList() {
  renderList($("list"), list(), conversation.id, removeConversation);
}

function showControls() {
  const empty = !conversation.messages.length;
  $("welcome").hidden = !empty;
  $("export").disabled = empty;
  composer.show(busy(), readiness.ready);
  document.title = [conversation.title, stats?.model, "qpack"].filter(Boolean).join(" · ");
}

function showServer() {
  const { ready, phase } = readiness;
  const ended = phase === "draining" || phase === "failed";
  const state = !phase ? "error_unreachable" : ended ? "error_booting" : "booting";
  const text = ready ? "" : word(state, { phase, message: phase });
  $("readiness").hidden = ready;
  if ($("readiness").textContent !== text) $("readiness").textContent = text; // or it would be read out each second
  $("model").textContent = stats?.model ?? "";
  if (stats) $("welcome-model").textContent = word("welcome_model", { ...stats, context: number(stats.context) });
  if (stats) renderState($("server"), stats);
  showControls();
}

$("language").onclick = () => {
  switchLanguage();
  settings.check();
  showNotice();
  show();
  showServer();
};
translate();
$("new").onclick = () => location.hash || open(); // without a hash there is nothing to change
$("export").onclick = () => exportConversation(conversation);
$("key").value = apiKey();
$("key").oninput = () => setApiKey($("key").value.trim());
$("key").onchange = look;
$("access").onsubmit = (event) => event.preventDefault();
addEventListener("hashchange", open);
addEventListener("storage", showList); // another tab has saved or deleted a conversation
document.addEventListener("visibilitychange", look);
for (const event of ["beforeunload", "pagehide"]) addEventListener(event, leave); // phones send only the second
open();
showServer();
