/** The server's state as the panel shows it: slots, queue, and how the steps are shared among the buckets. */

import { element } from "./element.js";
import { number, word } from "./words.js";

/** stats: the answer of GET /stats. */
export function renderState(node, stats) {
  const bundle = element("code", { title: stats.bundle_id }, stats.bundle_id.slice(0, 12));
  const facts = element(
    "dl",
    {},
    ...fact("state_model", stats.model),
    ...fact("state_bundle", bundle),
    ...fact("state_device", stats.device),
    ...fact("state_context", number(stats.context)),
    ...fact("state_queue", word("state_of", { used: stats.waiting, all: stats.queue_limit })),
    ...fact("state_slots", word("state_of", { used: stats.running, all: stats.slots })),
  );
  const seats = element("div", { className: "seats", ariaHidden: "true" });
  for (let slot = 0; slot < stats.slots; slot++) {
    seats.append(element("i", { className: slot < stats.running ? "used" : "" }));
  }
  const steps = stats.buckets.reduce((sum, bucket) => sum + bucket.steps, 0);
  const title = element("h3", {}, word("state_buckets"), element("small", {}, word("state_share")));
  const rows = stats.buckets.map((bucket) => row(bucket, steps));
  node.replaceChildren(facts, seats, title, element("ul", { className: "buckets" }, ...rows));
}

function fact(name, value) {
  return [element("dt", {}, word(name)), element("dd", {}, value)];
}

function row(bucket, steps) {
  const share = steps ? bucket.steps / steps : 0;
  const fill = element("i");
  fill.style.width = `${share * 100}%`;
  const time = number((1000 * bucket.seconds) / bucket.steps, 1);
  const used = bucket.steps ? word("state_steps", { steps: number(bucket.steps), time }) : word("state_unused");
  return element(
    "li",
    {},
    element("code", {}, bucket.name),
    element("b", {}, `${number(share * 100)} %`),
    element("span", { className: "bar", ariaHidden: "true" }, fill),
    element("small", {}, bucket.ready ? used : word("state_not_ready")),
  );
}
