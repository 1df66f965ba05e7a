/** The two columns beside the chat: side by side where there is room, else one drawer at a time over the page. */

const NARROW = matchMedia("(max-width: 1039px)"); // as in chat.css
const main = document.querySelector("main");
const backdrop = document.getElementById("backdrop");
const drawers = [...document.querySelectorAll("button[aria-controls]")].map((button) => {
  return { button, panel: document.getElementById(button.getAttribute("aria-controls")) };
});
let changed;

/** onChange: called after a panel has been shown or hidden. */
export function startDrawers(onChange) {
  changed = onChange;
  for (const { button, panel } of drawers) button.onclick = () => show(panel, panel.hidden);
  backdrop.onclick = closeDrawer;
  document.addEventListener("keydown", (event) => event.key === "Escape" && closeDrawer());
  NARROW.onchange = settle;
  settle();
}

export function openDrawer(panel) {
  if (panel.hidden) show(panel, true);
}

/** Closes the drawer that lies over the page, if one does, and gives the focus back to its button. */
export function closeDrawer() {
  const drawer = NARROW.matches && drawers.find(({ panel }) => !panel.hidden);
  if (!drawer) return;
  show(drawer.panel, false);
  drawer.button.focus();
}

function settle() {
  for (const { panel } of drawers) panel.hidden = NARROW.matches;
  update();
}

function show(panel, shown) {
  if (NARROW.matches) for (const drawer of drawers) drawer.panel.hidden = true;
  panel.hidden = !shown;
  update();
  if (NARROW.matches && shown) panel.focus();
}

function update() {
  const covered = NARROW.matches && drawers.some(({ panel }) => !panel.hidden);
  for (const { button, panel } of drawers) button.ariaExpanded = String(!panel.hidden);
  main.inert = covered;
  backdrop.hidden = !covered;
  changed();
}
