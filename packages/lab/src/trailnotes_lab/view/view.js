// Three comforts; every page works without them: curves switched on and off, keys, and a page that keeps up with its run.
"use strict";

function dress() {
  for (const box of document.querySelectorAll("[data-toggles]")) {
    const own = box.closest("figure").querySelector(`[data-series="${box.dataset.toggles}"]`);
    own.classList.toggle("gone", !box.checked);
    box.onchange = () => own.classList.toggle("gone", !box.checked);
  }
}

// Takes over from the newest page what has changed, part by part. Nothing in it can run: it is parsed, not loaded.
async function keepUp() {
  if (document.hidden || document.getSelection().toString()) return;
  const answer = await fetch(location.href, { credentials: "same-origin" });
  if (!answer.ok) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const part of document.querySelectorAll("[data-part]")) {
    const other = fresh.querySelector(`[data-part="${part.dataset.part}"]`);
    if (!other || part.contains(document.activeElement) || part.dataset.seen === other.innerHTML) continue;
    if (part.dataset.seen === undefined && part.innerHTML === other.innerHTML) continue;
    part.dataset.seen = other.innerHTML;
    const checked = new Map([...part.querySelectorAll("input[type=checkbox]")].map((box) => [box.value, box.checked]));
    const unfolded = [...part.querySelectorAll("details")].map((list) => list.open);
    part.replaceChildren(...other.childNodes);
    part.querySelectorAll("details").forEach((list, n) => { list.open = unfolded[n] ?? list.open; });
    for (const box of part.querySelectorAll("input[type=checkbox]")) box.checked = checked.get(box.value) ?? box.checked;
  }
  dress();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select")) return;
  const to = { ArrowLeft: "a[rel=prev]", k: "a[rel=prev]", ArrowRight: "a[rel=next]", j: "a[rel=next]" }[event.key];
  const link = to && document.querySelector(to);
  const field = event.key === "/" && document.querySelector("[data-search]");
  if (link) link.click();
  if (field) { field.focus(); event.preventDefault(); }
});

dress();
const often = Number(document.body.dataset.live || 0);
if (often && location.protocol.startsWith("http")) setInterval(() => keepUp().catch(() => {}), often * 1000);
