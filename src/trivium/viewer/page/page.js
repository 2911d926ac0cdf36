"use strict";
const one = (selector) => document.querySelector(selector);
const all = (selector) => [...document.querySelectorAll(selector)];
const kept = (name) => { try { return localStorage.getItem(name); } catch { return null; } };  // a file may have no storage
const keep = (name, value) => { try { localStorage.setItem(name, value); } catch { /* then it is forgotten */ } };

function theme(name) {
  document.documentElement.dataset.theme = name;
  keep("theme", name);
}
function turnTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme || (dark ? "dark" : "light");
  theme(now === "dark" ? "light" : "dark");
}
function colour(name) {
  document.body.dataset.colour = name;
  keep("colour", name);
}
function step(by) {
  const places = all(".block, table.episodes tr[tabindex]");
  const at = places.indexOf(document.activeElement);
  const next = places[at < 0 ? 0 : Math.max(0, Math.min(places.length - 1, at + by))];
  if (next) { next.focus(); next.scrollIntoView({ block: "nearest" }); }
}
const keys = {
  "/": () => one("#search")?.focus(), "?": () => one("#keys").showModal(), t: turnTheme,
  j: () => step(1), k: () => step(-1), Enter: () => document.activeElement.querySelector?.("td a")?.click(),
  n: () => one("#after")?.click(), p: () => one("#before")?.click(), u: () => one(".brand").click(),
  l: () => colour("logprob"), v: () => colour("version"), a: () => colour("advantage"), 0: () => colour("plain"),
};
addEventListener("keydown", (event) => {
  if (event.target.matches("input, select, textarea, button, a") || event.ctrlKey || event.metaKey || event.altKey) return;
  const act = keys[event.key];
  if (act) { event.preventDefault(); act(); }
});
one("#theme").onclick = turnTheme;
one("#help").onclick = () => one("#keys").showModal();
all("[data-mode]").forEach((button) => { button.onclick = () => colour(button.dataset.mode); });
if (kept("theme")) theme(kept("theme"));
if (kept("colour")) colour(kept("colour"));

async function refresh(live) {  // a run that trains: its curves anew every five seconds
  const answer = await fetch(location.pathname.replace(/\/?$/, "/curves"), { cache: "no-store" }).catch(() => null);
  if (answer?.ok) live.innerHTML = await answer.text();
  if (answer?.headers.get("x-growing") !== "no") setTimeout(refresh, 5000, live);
}
const live = one("#live[data-growing]");
if (live) setTimeout(refresh, 5000, live);
if (one("#count[data-reading]")) setTimeout(() => { if (!document.activeElement.matches("input, select")) location.reload(); }, 1500);
