/** Keeps asking the server how it is: until it is ready, and while its state is being looked at. */

import { readiness, ServerError, stats } from "./server.js";

const BOOT_MS = 1000;
const STATE_MS = 2000;

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

export class Watch {
  #report;
  #waiting = false;
  #timer = 0;
  #visible = () => false;

  /** report: called with {ready, phase}, no phase if there is no server; with {stats}; or {error}, a ServerError. */
  constructor(report) {
    this.#report = report;
  }

  /** Asks until the server is ready, then once for its state. */
  async untilReady() {
    if (this.#waiting) return;
    this.#waiting = true;
    for (;;) {
      const state = await readiness().catch(() => ({ ready: false }));
      this.#report(state);
      if (state.ready) break;
      await pause(BOOT_MS);
    }
    this.#waiting = false;
    await this.#ask();
  }

  /** Asks for the state now and every two seconds, as long as `visible()`. Call it whenever that may have changed. */
  whileVisible(visible) {
    this.#visible = visible;
    clearTimeout(this.#timer);
    if (visible() && !this.#waiting) this.#ask();
  }

  async #ask() {
    clearTimeout(this.#timer);
    try {
      this.#report({ stats: await stats() });
    } catch (error) {
      if (!(error instanceof ServerError)) throw error;
      this.#report({ error });
      if (error.word === "error_unreachable" || error.word === "error_booting") return this.untilReady();
    }
    clearTimeout(this.#timer);
    if (this.#visible()) this.#timer = setTimeout(() => this.#ask(), STATE_MS);
  }
}
