/** The two columns beside the chat: side by side where there is room, else one drawer at a time over the page. */

const NARROW = matchMedia("(max-width: 1039px)"); // as in chat.css

export class Drawers {
  #drawers; // [{button, panel}]
  #main;
  #backdrop;
  #changed;

  /** changed: called after a panel has been shown or hidden. */
  constructor(drawers, main, backdrop, changed) {
    this.#drawers = drawers;
    this.#main = main;
    this.#backdrop = backdrop;
    this.#changed = changed;
    for (const drawer of drawers) drawer.button.onclick = () => this.#toggle(drawer, drawer.panel.hidden);
    backdrop.onclick = () => this.close();
    document.addEventListener("keydown", (event) => event.key === "Escape" && this.close());
    NARROW.onchange = () => this.#settle();
    this.#settle();
  }

  open(panel) {
    const drawer = this.#drawers.find((one) => one.panel === panel);
    if (panel.hidden) this.#toggle(drawer, true);
  }

  /** Closes the drawer that lies over the page, if one does, and gives the focus back to its button. */
  close() {
    const drawer = NARROW.matches && this.#drawers.find(({ panel }) => !panel.hidden);
    if (!drawer) return;
    this.#toggle(drawer, false);
    drawer.button.focus();
  }

  #settle() {
    for (const { panel } of this.#drawers) panel.hidden = NARROW.matches;
    this.#update();
  }

  #toggle(drawer, shown) {
    if (NARROW.matches) for (const { panel } of this.#drawers) panel.hidden = true;
    drawer.panel.hidden = !shown;
    this.#update();
    if (NARROW.matches && shown) drawer.panel.focus();
  }

  #update() {
    const covered = NARROW.matches && this.#drawers.some(({ panel }) => !panel.hidden);
    for (const { button, panel } of this.#drawers) button.ariaExpanded = String(!panel.hidden);
    this.#main.inert = covered;
    this.#backdrop.hidden = !covered;
    this.#changed();
  }
}
