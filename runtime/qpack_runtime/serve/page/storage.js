/** Web storage that may be full or forbidden: what it can't take is kept in memory until the page closes. */

class Storage {
  #area;
  #memory = new Map();

  /** open: () => localStorage or sessionStorage; it throws where the browser forbids storage. */
  constructor(open) {
    try {
      this.#area = open();
    } catch {
      this.#area = null;
    }
  }

  get(key) {
    return this.#memory.get(key) ?? this.#area?.getItem(key) ?? null;
  }

  /** Returns whether the value will be there after a reload. */
  set(key, value) {
    try {
      this.#area.setItem(key, value);
      this.#memory.delete(key);
      return true;
    } catch {
      this.#memory.set(key, value);
      return false;
    }
  }

  delete(key) {
    this.#memory.delete(key);
    this.#area?.removeItem(key);
  }

  keys() {
    return [...new Set([...this.#memory.keys(), ...Object.keys(this.#area ?? {})])];
  }
}

export const local = new Storage(() => window.localStorage);
export const session = new Storage(() => window.sessionStorage);
