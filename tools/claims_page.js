"use strict";
// Filters, kept in the address behind its #. An address with the id of a claim there shows all, and goes to it.
const form = document.querySelector("form");
const claims = [...document.querySelectorAll("article")].map((element) => ({
  element,
  text: element.textContent.normalize("NFKC").toLowerCase(),
  verdicts: [...element.querySelectorAll("[data-verdict]")].map((one) => one.dataset),
}));
const names = [...form.elements].map((control) => control.name).filter(Boolean);

const filters = () => Object.fromEntries([...new FormData(form)].filter(([, value]) => value.trim()));

function fits(claim, asked) {
  const words = (asked.word ?? "").normalize("NFKC").toLowerCase().split(/\s+/);
  return words.every((word) => claim.text.includes(word))
    && ["kind", "article", "differs"].every((name) => !asked[name] || claim.element.dataset[name] === asked[name])
    && (!(asked.verdict || asked.machine) || claim.verdicts.some(
      (one) => ["verdict", "machine"].every((name) => !asked[name] || one[name] === asked[name])));
}

function show() {
  const asked = filters();
  let shown = 0;
  for (const claim of claims) {
    const fitting = fits(claim, asked);
    claim.element.hidden = !fitting;
    shown += fitting;
  }
  for (const section of document.querySelectorAll("section"))
    section.hidden = !section.querySelector("article:not([hidden])");
  form.querySelector("[role=status]").textContent = shown
    ? `${shown} of ${claims.length} claims` : "No claim matches. Remove a filter.";
}

function changed() {
  const hash = new URLSearchParams(filters()).toString();
  history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
  show();
}

function readAddress() {
  const hash = location.hash.slice(1);
  const asked = new URLSearchParams(hash.includes("=") ? hash : "");
  for (const name of names) {
    const control = form.elements[name], value = asked.get(name) ?? "";
    if (control.type === "checkbox") control.checked = value === control.value;
    else control.value = value;
    if (control.selectedIndex === -1) control.value = "";  // an option that is not there
  }
  show();
  if (hash && !hash.includes("=")) document.getElementById(hash)?.scrollIntoView();
}

for (const cell of document.querySelectorAll("td[data-verdict]")) {
  if (cell.textContent === "0") continue;
  const link = document.createElement("a");
  link.href = `#${new URLSearchParams({ ...cell.dataset })}`;
  link.append(...cell.childNodes);
  link.setAttribute("aria-label", `${link.textContent} claims: ${cell.dataset.verdict}`);
  cell.append(link);
}
form.addEventListener("input", changed);
form.addEventListener("reset", () => setTimeout(changed));  // once the controls are empty
form.addEventListener("submit", (event) => event.preventDefault());
addEventListener("hashchange", readAddress);
form.hidden = false;
readAddress();
