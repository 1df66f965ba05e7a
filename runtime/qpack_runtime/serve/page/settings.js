/** The sampling settings: kept in this browser, within their limits, and sent as numbers. */

import { element } from "./element.js";
import { local } from "./storage.js";
import { word } from "./words.js";

const KEY = "qpack.settings";

// Field of a request -> least value, most, step (1: whole numbers only), and what is shown in place of no value.
const NUMBERS = {
  temperature: [0, 2, 0.1],
  top_p: [0.01, 1, 0.01],
  top_k: [0, 256, 1],
  min_p: [0, 1, 0.01],
  repetition_penalty: [0.01, 2, 0.01],
  max_tokens: [1, Infinity, 1, "no_limit"], // the most is what the server has room for
  seed: [0, Number.MAX_SAFE_INTEGER, 1, "random"],
};

export class Settings {
  #form;
  #fault;
  #numbers;
  #defaults = {};
  #chosen; // field -> the text that the reader has put into it, where that isn't the default

  /** numbers: where the inputs of NUMBERS go; fault: where a wrong one is named. */
  constructor(form, numbers, fault, reset) {
    this.#form = form;
    this.#fault = fault;
    this.#numbers = Object.entries(NUMBERS).map(([name, limits]) => numberInput(numbers, name, limits));
    try {
      this.#chosen = { ...JSON.parse(local.get(KEY)) };
    } catch {
      this.#chosen = {};
    }
    form.onsubmit = (event) => event.preventDefault();
    form.oninput = ({ target }) => {
      if (target.value === "") delete this.#chosen[target.name];
      else this.#chosen[target.name] = target.value;
      local.set(KEY, JSON.stringify(this.#chosen));
      this.check();
    };
    reset.onclick = () => {
      this.#chosen = {};
      local.delete(KEY);
      this.#fill();
    };
    this.#fill();
  }

  /** defaults: field -> number, of the server's model; context: the most tokens a sequence can have. */
  limit(defaults, context) {
    this.#defaults = defaults;
    const input = this.#form.elements.max_tokens;
    input.max = context;
    showLimits(input);
    this.#fill();
  }

  /** Whether all numbers are within their limits; if not, the first that isn't is named beside the fields. */
  check() {
    const wrong = this.#numbers.find((input) => !valid(input));
    for (const input of this.#numbers) input.ariaInvalid = input === wrong ? "true" : null;
    this.#fault.hidden = !wrong;
    if (wrong) {
      const values = { name: word(wrong.name), low: wrong.min, high: wrong.max };
      this.#fault.textContent = word(wrong.step === "1" ? "fault_whole" : "fault", values);
    }
    return !wrong;
  }

  /** Puts the focus on the number that `check` found wrong. */
  focusFault() {
    this.#form.querySelector("[aria-invalid]").focus();
  }

  /** The fields of a request that these settings decide: numbers, and what the chat template is told. */
  fields() {
    const filled = this.#numbers.filter((input) => input.value !== "");
    const fields = Object.fromEntries(filled.map((input) => [input.name, Number(input.value)]));
    const thinking = this.#form.elements.thinking.value;
    if (thinking) fields.chat_template_kwargs = { enable_thinking: thinking === "on" };
    return fields;
  }

  /** The messages that come before the conversation. */
  preface() {
    const system = this.#form.elements.system.value.trim();
    return system ? [{ role: "system", content: system }] : [];
  }

  #fill() {
    for (const input of this.#form.elements) {
      if (input.name && input !== document.activeElement) {
        input.value = this.#chosen[input.name] ?? this.#defaults[input.name] ?? "";
      }
    }
    this.check();
  }
}

function numberInput(parent, name, [min, max, step, empty]) {
  const inputMode = step === 1 ? "numeric" : "decimal";
  const input = element("input", { type: "number", name, min, max, step, inputMode });
  if (empty) input.dataset.placeholder = empty;
  const label = element("span");
  label.dataset.text = name;
  parent.append(element("label", {}, label, element("small"), input));
  showLimits(input);
  return input;
}

function showLimits(input) {
  const most = Number(input.max) < Number.MAX_SAFE_INTEGER ? ` – ${input.max}` : " –";
  input.previousSibling.textContent = input.min + most;
}

function valid(input) {
  const { badInput, rangeUnderflow, rangeOverflow } = input.validity;
  const whole = input.step !== "1" || input.value === "" || Number.isInteger(Number(input.value));
  return !badInput && !rangeUnderflow && !rangeOverflow && whole;
}
