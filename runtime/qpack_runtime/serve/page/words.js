/** Every text of the page, in English and Chinese, and which of the two is shown. */

import { local } from "./storage.js";

const KEY = "qpack.language";
const LANGUAGES = ["en", "zh-CN"];

const WORDS = {
  other: ["中文", "English"],
  conversations: ["Conversations", "对话列表"],
  conversation: ["Conversation", "对话"],
  panel: ["Server and settings", "服务器与设置"],
  new: ["New conversation", "新对话"],
  kept: ["Conversations are kept in this browser only.", "对话只保存在此浏览器中。"],
  not_kept: [
    "The browser can't keep this conversation: its storage is full or forbidden. Export it, or delete others.",
    "浏览器存储已满或被禁用，无法保存此对话。请导出它，或删除其他。",
  ],
  delete: ["Delete “{title}”", "删除“{title}”"],
  deleted: ["“{title}” is deleted.", "已删除“{title}”。"],
  undo: ["Undo", "撤销"],
  export: ["Export this conversation as JSON", "将此对话导出为 JSON"],
  welcome: ["What would you like to know?", "想了解些什么？"],
  welcome_model: [
    "{model} is listening on {device}, with room for {context} tokens.",
    "{model} 正在 {device} 上运行，可容纳 {context} 个词元。",
  ],
  prompt: ["Message", "消息"],
  prompt_hint: ["Write a message…", "输入消息…"],
  send: ["Send", "发送"],
  stop: ["Stop", "停止"],
  you: ["You", "你"],
  answer: ["Answer", "回答"],
  regenerate: ["Answer again", "重新回答"],
  waiting: ["Waiting for the first token", "正在等待第一个词元"],
  thinking_now: ["Thinking…", "思考中…"],
  thought: ["Thoughts", "思考过程"],
  finished: ["Answer finished. {text}", "回答完毕。{text}"],
  stopped: ["Answer stopped. {text}", "回答已停止。{text}"],
  fact_first: ["{seconds} s to first token", "首词元 {seconds} 秒"],
  fact_rate: ["{rate} tokens/s", "{rate} 词元/秒"],
  fact_prompt: ["{tokens} prompt", "提示 {tokens}"],
  fact_prompt_cached: ["{tokens} prompt ({cached} cached)", "提示 {tokens}（缓存 {cached}）"],
  fact_answer: ["{tokens} answer", "回答 {tokens}"],
  fact_length: ["cut at the token limit", "已达词元上限"],
  fact_stopped: ["stopped", "已停止"],
  error_unreachable: ["The server can't be reached.", "无法连接服务器。"],
  error_broken: [
    "The connection broke before the answer was whole. What had come is kept.",
    "回答未完成，连接已中断。已收到的内容会保留。",
  ],
  error_failed: ["The server failed: {message}", "服务器出错：{message}"],
  error_refused: ["The server refused this: {message}", "服务器拒绝了请求：{message}"],
  error_full: ["The server is full. Try again in {seconds} s.", "服务器已满，请在 {seconds} 秒后重试。"],
  error_booting: ["The server isn't ready yet: {message}", "服务器尚未就绪：{message}"],
  error_key: ["The server asks for an API key, or doesn't know this one.", "服务器需要 API 密钥，或不认识此密钥。"],
  booting: ["The server is booting: {phase}. You can write already.", "服务器正在启动：{phase}。您可以先写消息。"],
  server: ["Server", "服务器"],
  state_model: ["Model", "模型"],
  state_bundle: ["Bundle", "模型包"],
  state_device: ["Device", "设备"],
  state_context: ["Context", "上下文"],
  state_slots: ["Slots in use", "使用中的槽位"],
  state_queue: ["Waiting", "排队"],
  state_of: ["{used} of {all}", "{used} / {all}"],
  state_buckets: ["Buckets", "形状桶"],
  state_share: ["share of steps", "步数占比"],
  state_steps: ["{steps} steps, {time} ms each", "{steps} 步，每步 {time} 毫秒"],
  state_unused: ["not used yet", "尚未使用"],
  state_not_ready: ["not ready", "未就绪"],
  settings: ["Sampling", "采样"],
  reset: ["Reset", "重置"],
  system: ["System prompt", "系统提示"],
  temperature: ["Temperature", "温度"],
  top_p: ["Top-p", "Top-p"],
  top_k: ["Top-k", "Top-k"],
  min_p: ["Min-p", "Min-p"],
  repetition_penalty: ["Repetition", "重复惩罚"],
  max_tokens: ["Max. tokens", "最多词元"],
  no_limit: ["no limit", "不限"],
  seed: ["Seed", "随机种子"],
  random: ["random", "随机"],
  thinking: ["Thinking", "思考"],
  thinking_model: ["As the model", "由模型决定"],
  on: ["On", "开"],
  off: ["Off", "关"],
  fault: ["{name} must be a number from {low} to {high}.", "{name}必须是 {low} 到 {high} 之间的数。"],
  fault_whole: ["{name} must be a whole number from {low} to {high}.", "{name}必须是 {low} 到 {high} 之间的整数。"],
  key: ["API key", "API 密钥"],
  key_kept: ["Forgotten when this tab closes.", "关闭此标签页后即忘记。"],
};

let language = local.get(KEY);
if (!LANGUAGES.includes(language)) language = LANGUAGES[Number(navigator.language.startsWith("zh"))];

/** The text `key`, with each {name} replaced by values[name]. */
export function word(key, values = {}) {
  return WORDS[key][LANGUAGES.indexOf(language)].replace(/\{(\w+)\}/g, (_, name) => values[name]);
}

/** A number as the language writes it, rounded to `digits` decimals. */
export function number(value, digits = 0) {
  return value.toLocaleString(language, { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

/** Writes the static texts of index.html. */
export function translate() {
  document.documentElement.lang = language;
  for (const node of document.querySelectorAll("[data-text]")) node.textContent = word(node.dataset.text);
  for (const node of document.querySelectorAll("[data-label]")) {
    node.ariaLabel = word(node.dataset.label);
    if (node.matches("button")) node.title = node.ariaLabel;
  }
  for (const node of document.querySelectorAll("[data-placeholder]")) node.placeholder = word(node.dataset.placeholder);
}

/** Goes over to the other language, and remembers it. */
export function switchLanguage() {
  language = LANGUAGES.find((other) => other !== language);
  local.set(KEY, language);
  translate();
}
