/** The message field: Enter sends, unless an input method is still composing, and the field grows with its text. */

import { icon } from "./element.js";
import { word } from "./words.js";

export class Composer {
  #field;
  #button;

  /** send(text) returns whether it took the text; stop() ends the answer being written. */
  constructor(form, field, button, { send, stop, busy }) {
    this.#field = field;
    this.#button = button;
    const submit = () => {
      const text = field.value.trim();
      if (!text || !send(text)) return;
      field.value = "";
      this.#grow();
    };
    form.onsubmit = (event) => {
      event.preventDefault();
      if (busy()) stop();
      else submit();
    };
    field.oninput = () => this.#grow();
    field.onkeydown = (event) => {
      const composing = event.isComposing || event.keyCode === 229; // 229: Safari's Enter that ends a composition
      if (event.key !== "Enter" || event.shiftKey || composing) return;
      event.preventDefault();
      if (!busy()) submit();
    };
  }

  focus() {
    this.#field.focus();
  }

  /** The button stops an answer being written, or sends. */
  show(busy, ready) {
    const action = busy ? "stop" : "send";
    this.#button.ariaLabel = this.#button.title = word(action);
    this.#button.ariaDisabled = String(!busy && !ready);
    this.#button.replaceChildren(icon(action));
  }

  #grow() {
    this.#field.style.height = "auto";
    this.#field.style.height = `${this.#field.scrollHeight}px`; // the style sheet sets the most
  }
}
